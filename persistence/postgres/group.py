"""Appends that wait while others are written go into the next statement together, and share its commit.

One session waits for nobody: a writer that is free takes its batch at once. Under load, the more appends wait the more
of them one commit covers. Each is still decided and answered on its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from app.session.errors import PersistenceUnavailable
from persistence.postgres import errors
from persistence.postgres.connecting import Link
from persistence.postgres.locked import Locked, until_unlocked
from persistence.postgres.pool import Pool
from persistence.postgres.writing import Writer, Writing

_REPEATS = 20
"""How often a batch is sent again because other transactions were in its way."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """An append that nobody has answered yet. `was_sent` once its outcome may be that of an earlier statement."""

    writing: Writing
    size: int
    deadline: float
    answer: asyncio.Future[None]
    was_sent: bool = False

    @property
    def session_id(self) -> str:
        return self.writing.header.id

    def end(self, error: BaseException | None = None) -> None:
        """Answer it. A caller that was cancelled no longer waits; what was done for it stays done."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(error)


class GroupCommit:
    """Writes what is asked through `writers` connections. `max_bytes` of event text go into one statement at most.

    An append waits `wait_s` for a writer; a statement that has begun goes on whatever becomes of its caller.
    """

    def __init__(self, pool: Pool, writer: Writer, writers: int, max_bytes: int, wait_s: float) -> None:
        self._pool = pool
        self._writer = writer
        self._writers = writers
        self._max_bytes = max_bytes
        self._wait_s = wait_s
        self._waiting: deque[_Waiting] = deque()
        self._busy = 0  # not len(_working): a task is counted there a moment longer than it looks for work
        self._working: set[asyncio.Task[None]] = set()

    async def append(self, writing: Writing) -> None:
        """Store one batch. Raises the contract's refusals, and PersistenceUnavailable."""
        loop = asyncio.get_running_loop()
        size = sum(len(event.text) for event in writing.batch.events)
        waiting = _Waiting(writing, size, loop.time() + self._wait_s, loop.create_future())
        self._waiting.append(waiting)
        if self._busy < self._writers:
            self._busy += 1
            self._start(self._work())
        expiry = loop.call_at(waiting.deadline, self._expire, waiting)
        try:
            await waiting.answer
        finally:
            expiry.cancel()

    async def drain(self) -> None:
        """Return once everything that was asked for is answered."""
        while self._working:
            await asyncio.wait(self._working)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    # ---------------------------------------------------------------------------------------- one writer

    async def _work(self) -> None:
        group: list[_Waiting] = []
        try:
            while self._waiting:
                group = self._take()
                rest = await self._write_together(group) if len(group) > 1 else group
                for waiting in rest:
                    try:
                        await self._write_alone(waiting)
                    except Locked:
                        self._start(self._write_when_unlocked(waiting))
        except BaseException as error:  # the loop is shutting down, or a bug: nobody is to wait for ever
            for waiting in group:
                waiting.end(PersistenceUnavailable(waiting.session_id, f"the writer ended ({type(error).__name__})"))
            raise
        finally:
            self._busy -= 1

    def _take(self) -> list[_Waiting]:
        """The first that waits, and all that may go with it: one batch a session, no first ones, in order of id."""
        first = self._waiting.popleft()
        if first.writing.creates or not self._waiting:
            return [first]
        taken, size = {first.session_id: first}, first.size
        left: list[_Waiting] = []
        for waiting in self._waiting:
            fits = size + waiting.size <= self._max_bytes
            if fits and not waiting.writing.creates and waiting.session_id not in taken:
                taken[waiting.session_id] = waiting
                size += waiting.size
            else:
                left.append(waiting)
        self._waiting = deque(left)
        return [taken[id] for id in sorted(taken)]

    async def _write_together(self, group: list[_Waiting]) -> list[_Waiting]:
        """Those still without an answer. An error of the shared statement is nobody's answer."""
        stored: set[str] = set()
        first = min(group, key=lambda waiting: waiting.deadline)
        try:
            async with self._pool.use(first.session_id, self._left(first)) as link:
                for waiting in group:
                    waiting.was_sent = True
                warnings = link.warnings
                found = await self._writer.together(link.connection, [waiting.writing for waiting in group])
                stored = found if link.warnings == warnings else set()
        except Exception:  # whatever it is, it says nothing of any one: each is sent again alone, and answered then
            stored = set()
        for waiting in group:
            if waiting.session_id in stored:
                waiting.end()
        return [waiting for waiting in group if waiting.session_id not in stored]

    async def _write_alone(self, waiting: _Waiting) -> None:
        """Answer it, whatever the answer is. Raises Locked when there is none yet."""
        for n in range(_REPEATS):
            try:
                async with self._pool.use(waiting.session_id, self._left(waiting)) as link:
                    await self._send(link, waiting)
            except Locked:
                raise
            except Exception as error:  # whatever it is, it is for the one who asked, not for those who wait behind
                may_repeat = errors.is_in_the_way(error) or (errors.is_lost(error) and not waiting.was_sent)
                waiting.was_sent = True
                if may_repeat and n + 1 < _REPEATS:
                    continue
                waiting.end(errors.meaning(error, waiting.session_id) if isinstance(error, errors.FOREIGN) else error)
            else:
                waiting.end()
            return

    async def _write_when_unlocked(self, waiting: _Waiting) -> None:
        """As `_write_alone`, without a writer while it waits."""
        waiting.was_sent = True  # what was sent before goes straight to the statement that says why not
        try:
            await until_unlocked(lambda: self._write_alone(waiting), waiting.session_id, self._left(waiting))
        except PersistenceUnavailable as error:
            waiting.end(error)
        finally:  # without an answer only when the loop is shutting down, or by a bug: nobody is to wait for ever
            waiting.end(PersistenceUnavailable(waiting.session_id, "the writer ended"))

    async def _send(self, link: Link, waiting: _Waiting) -> None:
        warnings = link.warnings
        # fp: postgres.sending
        await self._writer.one(link.connection, waiting.writing, is_repeated=waiting.was_sent)
        # fp: postgres.answered
        if link.warnings != warnings:
            raise PersistenceUnavailable(
                waiting.session_id, "the server committed with a warning, perhaps only for itself"
            )

    def _left(self, waiting: _Waiting) -> float:
        return max(waiting.deadline - asyncio.get_running_loop().time(), 0.0)

    def _expire(self, waiting: _Waiting) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            reason = f"no writer was free within {self._wait_s * 1000:.0f} ms"
            waiting.end(PersistenceUnavailable(waiting.session_id, reason))

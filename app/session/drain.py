"""How one session's events reach the store: one write at a time, shared by all who wait, never taken back.

A write takes the pending events in order. A batch whose outcome is not known is sent again exactly as it was, alone,
before anything newer. `write_behind_ms` bounds how old an unwritten event gets; it never delays a flush.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from app.session import events as ev
from app.session.batch import Batch, Reason
from app.session.errors import FlushTimeout, PersistenceError
from app.session.session import Session

logger = logging.getLogger(__name__)

Write: TypeAlias = Callable[[Batch, bool], Awaitable[None]]
"""Stores a batch, told whether it was sent before; raises what `SessionPersistence.append` raises."""


@dataclass(frozen=True, slots=True)
class DrainLimits:
    """The size of a batch in events and bytes of their text, the write-behind window and a flush's patience in ms."""

    max_batch_events: int = 5_000
    max_batch_bytes: int = 4 * 1024 * 1024
    write_behind_ms: int | None = 200
    flush_timeout_ms: int = 30_000


class Drain:
    """The one way from a session to its store. `head` is the digest last acknowledged, 32 bytes."""

    def __init__(self, session: Session, head: bytes, write: Write, limits: DrainLimits) -> None:
        self.head = head
        self._session = session
        self._write = write
        self._limits = limits
        self._unsettled: Batch | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_background = False
        self._attempted = 0  # events that the last write had before it, and that are not tried again by themselves
        self._due = 0  # events whose window has ended
        self._timer: asyncio.TimerHandle | None = None
        session.on_append = self._appended

    async def flush(self, reason: Reason) -> None:
        """Return once every event appended before this call is durable.

        Raises the error of the write that failed; FlushTimeout, and then the write goes on. A caller that is cancelled
        stops waiting; the write goes on.
        """
        mark = len(self._session)
        deadline = asyncio.get_running_loop().time() + self._limits.flush_timeout_ms / 1000
        self._session.check_usable()
        while self._session.durable < mark:
            self._session.check_usable()
            writing = self._start(reason) if self._writing is None else self._writing
            was_background = self._is_background
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.wait((writing,), timeout=max(left, 0))
            if not writing.done():
                raise FlushTimeout(self._session.id, self._limits.flush_timeout_ms)
            if writing.cancelled():
                raise asyncio.CancelledError  # the event loop is shutting down and cancels every task
            error = writing.exception()
            if error is not None and (self._session.is_lost or not was_background):
                raise error

    async def settle(self) -> None:
        """Wait for the write in progress, whatever comes of it, as long as a flush would; and start no other."""
        self._disarm()
        self._due = 0
        if self._writing is not None:
            await asyncio.wait((self._writing,), timeout=self._limits.flush_timeout_ms / 1000)

    # ---------------------------------------------------------------------------------------- one write

    def _start(self, reason: Reason) -> asyncio.Task[None]:
        self._disarm()
        self._attempted = len(self._session)
        self._is_background = reason == "background"
        self._writing = asyncio.get_running_loop().create_task(self._write_next(reason))
        self._writing.add_done_callback(self._written)
        return self._writing

    async def _write_next(self, reason: Reason) -> None:
        session, limits = self._session, self._limits
        sent_before = self._unsettled is not None
        if self._unsettled is None:
            events = session.next_batch(limits.max_batch_events, limits.max_batch_bytes)
            self._unsettled = Batch(events, self.head, reason)
        batch = self._unsettled
        # fp: batch.made
        await self._write(batch, sent_before)
        # fp: batch.stored
        self._unsettled = None
        self.head = batch.digest
        session.mark_durable(batch.next_seq)
        # fp: batch.acknowledged

    def _written(self, writing: asyncio.Task[None]) -> None:
        self._writing = None
        if writing.cancelled():
            return
        error = writing.exception()  # looked at also where nobody waits: asyncio would report it as forgotten
        if self._session.is_lost:
            return
        if error is not None and self._is_background:
            self._report(error)
        handled = self._attempted if error is not None else self._session.durable
        if self._due > handled:
            self._start("background")
        elif error is None and self._session.durable < len(self._session):
            self._appended()  # what the batch limits left over gets a window too

    def _report(self, error: BaseException) -> None:
        logger.warning("a background write of session %s failed: %s", self._session.id, error)
        code = error.code if isinstance(error, PersistenceError) else "INTERNAL"
        self._session.notify(ev.AgentError(code, str(error)))

    # ---------------------------------------------------------------------------------------- write-behind

    def _appended(self) -> None:
        if self._limits.write_behind_ms is not None and self._timer is None and not self._session.is_lost:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._limits.write_behind_ms / 1000, self._window_ended)

    def _window_ended(self) -> None:
        self._timer = None
        if self._session.is_lost:
            return
        self._due = len(self._session)
        if self._writing is None and self._session.durable < self._due:
            self._start("background")

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

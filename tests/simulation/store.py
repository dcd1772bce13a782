"""A store behind a network: it loses requests and answers, does late what nobody waits for, and may forget.

One `Server` is the truth. What it has done can be seen at once, and is durable a moment later; only then it answers. A
failover leaves what was durable, which is what a synchronous standby leaves that takes over. Each simulated process has
a `Client` of it, which is a real SessionPersistence.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypeVar

from app.session.batch import Batch, Header
from app.session.errors import PersistenceUnavailable, SequenceConflict, SessionExists, SessionFenced
from app.session.ownership import Epoch, Owner
from app.session.persistence import Repair, SessionRow, StoredLog
from app.session.record import SessionEvent
from persistence.memory import MemoryPersistence

T = TypeVar("T")
Fault: TypeAlias = Literal["refused", "request lost", "answer lost", "late"]

FAULTS: tuple[Fault, ...] = ("refused", "request lost", "answer lost", "late")
TIMEOUT_S = 1.0


class Server:
    """`fault_rate` is the share of requests that something happens to; `happened` counts all sorts of things.

    `sent` and `refused` count batches by their digests, which two owners may share: both begin the same turn.
    """

    def __init__(self, time: Callable[[], float], lots: random.Random) -> None:
        self.fault_rate = 0.0
        self.acknowledged: dict[str, dict[int, str]] = {}
        self.sent: Counter[bytes] = Counter()
        self.refused: Counter[bytes] = Counter()
        self.violations: list[str] = []
        self.happened: Counter[str] = Counter()
        self.lots = lots
        self._time = time
        self.visible = MemoryPersistence(time, lambda: int(time() * 1000))
        self._durable: dict[str, Any] = {}
        self._generation = 0
        self._done = self._done_durably = 0
        self._epochs: dict[str, int] = {}
        self._told_epochs: dict[str, int] = {}

    def durable_events(self, session_id: str) -> list[SessionEvent]:
        """What of a session would be there after a failover."""
        kept = self._durable.get(session_id)
        return [] if kept is None or kept == "deleted" else list(kept.events)

    def fail_over(self) -> None:
        """What was not durable is gone, and nobody is answered who waits."""
        self.happened["fail over"] += 1
        self._generation += 1
        self.visible._sessions = _copy(self._durable)
        self._epochs = dict(self._told_epochs)  # a claim that nobody was told of may be gone with it

    def latency_s(self) -> float:
        """How long one way takes: mostly about a millisecond, now and then much longer."""
        return self.lots.expovariate(1000 if self.lots.random() < 0.95 else 20)

    def receive(self, delay_s: float, work: Callable[[MemoryPersistence], Awaitable[Any]], answer: Answer) -> None:
        """Do the work when the request arrives, whatever became of who sent it."""
        loop = asyncio.get_running_loop()
        generation = self._generation

        def arrive() -> None:
            if generation != self._generation:
                return
            try:
                result: Any = _at_once(work(self.visible))
            except Exception as error:  # a refusal: it writes nothing, so there is nothing to wait for
                loop.call_later(self.latency_s(), answer, None, error, context=contextvars.Context())
                return
            self._done += 1
            image = _copy(self.visible._sessions)
            loop.call_later(self.latency_s(), commit, self._done, image, result, context=contextvars.Context())

        def commit(number: int, image: dict[str, Any], result: Any) -> None:
            if generation != self._generation:
                return
            if number > self._done_durably:  # one that is overtaken by a later one is durable with it
                self._done_durably, self._durable = number, image
            loop.call_later(self.latency_s(), answer, result, None, context=contextvars.Context())

        loop.call_later(delay_s, arrive, context=contextvars.Context())

    # ---------------------------------------------------------------------------------------- what may not happen

    def watch_append(self, session_id: str, epoch: Epoch) -> None:
        """Called when a batch was taken."""
        if epoch.number < self._epochs.get(session_id, 0):
            self.violations.append(f"epoch {epoch.number} wrote after epoch {self._epochs[session_id]} had begun")

    def watch_acquire(self, session_id: str, epoch: Epoch) -> None:
        """Called when a claim was made."""
        self._epochs[session_id] = max(self._epochs.get(session_id, 0), epoch.number)

    def tell_of(self, session_id: str, epoch: Epoch) -> None:
        """Called when a client hears that a claim was made: that one is durable."""
        self._told_epochs[session_id] = max(self._told_epochs.get(session_id, 0), epoch.number)

    def acknowledge(self, session_id: str, events: Sequence[SessionEvent]) -> None:
        """Called when a client hears that events are stored."""
        known = self.acknowledged.setdefault(session_id, {})
        for event in events:
            if known.setdefault(event.seq, event.line) != event.line:
                self.violations.append(f"two events of seq {event.seq} were acknowledged")


Answer: TypeAlias = Callable[[Any, Exception | None], None]


def _at_once(work: Awaitable[T]) -> T:
    """The store in memory never waits."""
    try:
        work.__await__().send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("the store in memory waited")


def _copy(sessions: dict[str, Any]) -> dict[str, Any]:
    return {
        key: kept if kept == "deleted" else replace(kept, events=list(kept.events), ends=list(kept.ends))
        for key, kept in sessions.items()
    }


class Client:
    """The server as one process sees it. `heard_nothing` is raised when no answer came within TIMEOUT_S."""

    kind = "simulated"
    durable = True

    def __init__(self, server: Server) -> None:
        self._server = server

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close."""

    async def check_free(self, session_id: str) -> None:
        await self._ask(session_id, lambda store: store.check_free(session_id))

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        async def append(store: MemoryPersistence) -> None:
            await store.append(header, batch, epoch)
            self._server.watch_append(header.id, epoch)

        self._server.sent[batch.digest] += 1
        try:
            await self._ask(header.id, append)
        except (SessionFenced, SequenceConflict, SessionExists) as refusal:
            if isinstance(refusal, SequenceConflict):  # this epoch's writer is alone here, and knows what it wrote
                self._server.violations.append(f"a batch was in conflict: {refusal}")
            self._server.refused[batch.digest] += 1
            raise
        self._server.acknowledge(header.id, batch.events)

    async def acquire(
        self, session_id: str, owner: Owner, *, force: bool = False, repair: Repair | None = None
    ) -> tuple[Epoch, StoredLog]:
        closing: list[Batch] = []

        def watched(log: StoredLog, epoch: Epoch) -> Batch | None:
            batch = None if repair is None else repair(log, epoch)
            closing[:] = [] if batch is None else [batch]
            return batch

        async def acquire(store: MemoryPersistence) -> tuple[Epoch, StoredLog]:
            taken = await store.acquire(session_id, owner, force=force, repair=watched)
            self._server.watch_acquire(session_id, taken[0])
            return taken

        epoch, log = await self._ask(session_id, acquire)
        self._server.tell_of(session_id, epoch)
        self._server.acknowledge(session_id, [*log.events, *(event for batch in closing for event in batch.events)])
        return epoch, log

    async def renew(self, session_id: str, epoch: Epoch) -> None:
        await self._ask(session_id, lambda store: store.renew(session_id, epoch))

    async def release(self, session_id: str, epoch: Epoch) -> None:
        await self._ask(session_id, lambda store: store.release(session_id, epoch))

    async def read(self, session_id: str, *, before: int | None = None) -> StoredLog:
        return await self._ask(session_id, lambda store: store.read(session_id, before=before))

    async def read_from(self, session_id: str, seq: int, limit: int = 1000) -> Sequence[SessionEvent]:
        return await self._ask(session_id, lambda store: store.read_from(session_id, seq, limit))

    async def list(self, limit: int, after: tuple[int, str] | None = None) -> Sequence[SessionRow]:
        return await self._ask("", lambda store: store.list(limit, after))

    async def delete(self, session_id: str) -> None:
        await self._ask(session_id, lambda store: store.delete(session_id))

    async def _ask(self, session_id: str, work: Callable[[MemoryPersistence], Awaitable[T]]) -> T:
        server, lots = self._server, self._server.lots
        fault = lots.choice(FAULTS) if lots.random() < server.fault_rate else None
        if fault is not None:
            server.happened[fault] += 1
        heard_nothing = PersistenceUnavailable(session_id, fault or "no answer in time")
        answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def answer(result: Any, error: Exception | None) -> None:
            if answered.done() or fault in ("answer lost", "late"):
                return
            if error is None:
                answered.set_result(result)
            else:
                answered.set_exception(error)

        if fault == "refused":
            await asyncio.sleep(server.latency_s())
            raise heard_nothing
        if fault != "request lost":
            late_s = TIMEOUT_S + lots.expovariate(1) if fault == "late" else 0
            server.receive(late_s + server.latency_s(), work, answer)
        await asyncio.wait((answered,), timeout=TIMEOUT_S)
        if not answered.done():
            answered.cancel()
            raise heard_nothing
        return answered.result()

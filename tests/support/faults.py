"""A store that fails where a test says: it wraps the real one, so that what is stored is really stored.

faulty = FaultyPersistence(MemoryPersistence())
faulty.next("append", FailBefore(DOWN))     # the next append raises, nothing stored
faulty.next("append", FailAfter(DOWN))      # it is stored, and raises
gate = faulty.hold("append")                # it waits before it does anything: `await gate.reached`, `gate.open()`
gate = faulty.hold("append", after=True)    # it is stored, and its answer waits
faulty.always("append", FailBefore(DOWN))   # from now on; `faulty.heal()` ends that and forgets what was planned
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, TypeVar

from app.session.batch import Batch, Header
from app.session.errors import PersistenceUnavailable
from app.session.ownership import Epoch, Owner
from app.session.persistence import Repair, SessionPersistence, SessionRow, StoredLog
from app.session.record import SessionEvent

T = TypeVar("T")
Call: TypeAlias = Literal["check_free", "append", "acquire", "renew", "release", "read", "read_from", "list", "delete"]

DOWN = PersistenceUnavailable("the session", "disk unavailable")


class Fault(Protocol):
    """What happens to one call: does it by `call`, or not, or not only."""

    async def around(self, call: Callable[[], Awaitable[T]]) -> T: ...


@dataclass(frozen=True)
class FailBefore:
    """The call raises and the store never sees it."""

    error: BaseException = DOWN

    async def around(self, call: Callable[[], Awaitable[T]]) -> T:
        raise self.error


@dataclass(frozen=True)
class FailAfter:
    """The store does it, the answer is lost: the call raises."""

    error: BaseException = DOWN

    async def around(self, call: Callable[[], Awaitable[T]]) -> T:
        await call()
        raise self.error


@dataclass
class Gate:
    """The call waits at the gate, before the store sees it or after it is done. It then ends as `then` says."""

    after: bool = False
    then: BaseException | None = None
    _reached: asyncio.Event = field(default_factory=asyncio.Event)
    _opened: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_reached(self) -> bool:
        return self._reached.is_set()

    async def reached(self) -> None:
        """Return once the call stands at the gate."""
        await self._reached.wait()

    def open(self) -> None:
        """Let the call go on."""
        self._opened.set()

    async def around(self, call: Callable[[], Awaitable[T]]) -> T:
        if not self.after:
            await self._stand()
        result = await call()
        if self.after:
            await self._stand()
        return result

    async def _stand(self) -> None:
        self._reached.set()
        await self._opened.wait()
        if self.then is not None:
            raise self.then


class FaultyPersistence:
    """The store `inner`, with faults. A call nobody planned anything for goes through.

    `log` tells in order what went on: "append" when a call comes in, "append done" or "append failed" when it ends. It
    may be shared with others who write into it. `appends` are all batches that came in by `append`; `written` are those
    that the store took, in order, those of a repair too, and also when the answer was lost.
    """

    def __init__(self, inner: SessionPersistence, log: list[str] | None = None) -> None:
        self.inner = inner
        self.log: list[str] = [] if log is None else log
        self.appends: list[Batch] = []
        self.written: list[Batch] = []
        self._planned: defaultdict[Call, deque[Fault | None]] = defaultdict(deque)
        self._standing: dict[Call, Fault] = {}

    def next(self, call: Call, *faults: Fault | None) -> None:
        """Plan the next calls of this kind, one fault each; None lets one through."""
        self._planned[call].extend(faults)

    def hold(self, call: Call, *, after: bool = False, then: BaseException | None = None) -> Gate:
        """Plan a gate for the next call of this kind that nothing is planned for."""
        gate = Gate(after, then)
        self.next(call, gate)
        return gate

    def always(self, call: Call, fault: Fault) -> None:
        """Let every call of this kind fail that nothing else is planned for."""
        self._standing[call] = fault

    def heal(self) -> None:
        """Forget every fault. Calls that stand at a gate still wait for it."""
        self._planned.clear()
        self._standing.clear()

    @property
    def reasons(self) -> list[str]:
        """Why each batch was written that the store took."""
        return [batch.reason for batch in self.written]

    # ---------------------------------------------------------------------------------------- the contract

    @property
    def kind(self) -> str:
        return self.inner.kind

    @property
    def durable(self) -> bool:
        return self.inner.durable

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def check_free(self, session_id: str) -> None:
        await self._do("check_free", lambda: self.inner.check_free(session_id))

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        async def append() -> None:
            await self.inner.append(header, batch, epoch)
            self.written.append(batch)

        self.appends.append(batch)
        await self._do("append", append)

    async def acquire(
        self, session_id: str, owner: Owner, *, force: bool = False, repair: Repair | None = None
    ) -> tuple[Epoch, StoredLog]:
        closing: list[Batch | None] = []

        def watched(log: StoredLog, epoch: Epoch) -> Batch | None:
            closing.append(None if repair is None else repair(log, epoch))
            return closing[-1]

        async def acquire() -> tuple[Epoch, StoredLog]:
            taken = await self.inner.acquire(session_id, owner, force=force, repair=watched)
            self.written += [batch for batch in closing[-1:] if batch is not None]
            return taken

        return await self._do("acquire", acquire)

    async def renew(self, session_id: str, epoch: Epoch) -> None:
        await self._do("renew", lambda: self.inner.renew(session_id, epoch))

    async def release(self, session_id: str, epoch: Epoch) -> None:
        await self._do("release", lambda: self.inner.release(session_id, epoch))

    async def read(self, session_id: str, *, before: int | None = None) -> StoredLog:
        return await self._do("read", lambda: self.inner.read(session_id, before=before))

    async def read_from(self, session_id: str, seq: int, limit: int = 1000) -> Sequence[SessionEvent]:
        return await self._do("read_from", lambda: self.inner.read_from(session_id, seq, limit))

    async def list(self, limit: int, after: tuple[int, str] | None = None) -> Sequence[SessionRow]:
        return await self._do("list", lambda: self.inner.list(limit, after))

    async def delete(self, session_id: str) -> None:
        await self._do("delete", lambda: self.inner.delete(session_id))

    async def _do(self, name: Call, call: Callable[[], Awaitable[T]]) -> T:
        self.log.append(name)
        planned = self._planned[name]
        fault = planned.popleft() if planned else self._standing.get(name)
        try:
            result = await (call() if fault is None else fault.around(call))
        except BaseException:  # also a caller that was cancelled
            self.log.append(f"{name} failed")
            raise
        self.log.append(f"{name} done")
        return result

"""The contract of app.session.persistence in plain objects, for tests and for what need not outlive its process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.session.batch import Batch, BatchEnd, Header
from app.session.identifiers import check_id
from app.session.ownership import Epoch, Owner
from app.session.persistence import Repair, SessionRow, StoredLog
from app.session.record import SessionEvent
from persistence import rules


@dataclass
class _Kept:
    header: Header
    epoch: int = 0
    token: str | None = None
    owner: str | None = None
    lease_until: float = 0.0
    events: list[SessionEvent] = field(default_factory=list)
    ends: list[BatchEnd] = field(default_factory=list)
    title: str | None = None

    @property
    def last(self) -> BatchEnd:
        return self.ends[-1]


class MemoryPersistence:
    """Sessions that last as long as this object, open or closed. Everybody who is to see them shares it.

    `lease_clock` gives seconds that only grow, `wall_clock` milliseconds since the epoch. One event loop at a time.
    """

    kind = "memory"
    durable = False

    def __init__(
        self,
        lease_clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._lease_clock = lease_clock
        self._wall_clock = wall_clock
        self._sessions: dict[str, _Kept | Literal["deleted"]] = {}

    def __repr__(self) -> str:
        return f"<MemoryPersistence: {len(self._sessions)} sessions>"

    async def open(self) -> None:
        """See the contract. There is nothing to open."""

    async def close(self) -> None:
        """See the contract. What is stored stays, for who opens it again."""

    async def check_free(self, session_id: str) -> None:
        """See the contract."""
        rules.check_free(self._find(session_id), session_id)

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        """See the contract."""
        batch.check()
        outcome = rules.decide(self._find(header.id), header, batch, epoch, lambda seq: self._digest_at(header.id, seq))
        if outcome == "repeated":
            self._kept(header.id).lease_until = self._lease_end(epoch)
        else:
            self._store(_Kept(header) if outcome == "create" else self._kept(header.id), batch, epoch)

    async def acquire(
        self, session_id: str, owner: Owner, *, force: bool = False, repair: Repair | None = None
    ) -> tuple[Epoch, StoredLog]:
        """See the contract."""
        row = rules.check_takeable(self._find(session_id), session_id, force=force)
        stored = self._log(session_id, None)
        epoch = Epoch.after(row.epoch, owner)
        batch = None if repair is None else repair(stored, epoch)
        rules.check_repair(batch, row)
        self._store(self._kept(session_id), batch, epoch)
        return epoch, stored

    async def renew(self, session_id: str, epoch: Epoch) -> None:
        """See the contract."""
        rules.check_claim(self._find(session_id), session_id, epoch)
        self._kept(session_id).lease_until = self._lease_end(epoch)

    async def release(self, session_id: str, epoch: Epoch) -> None:
        """See the contract."""
        rules.check_claim(self._find(session_id), session_id, epoch)
        kept = self._kept(session_id)
        kept.token = kept.owner = None
        kept.lease_until = self._lease_clock()

    async def read(self, session_id: str, *, before: int | None = None) -> StoredLog:
        """See the contract."""
        return self._log(session_id, before)

    async def read_from(self, session_id: str, seq: int, limit: int = 1000) -> Sequence[SessionEvent]:
        """See the contract."""
        rules.present(self._find(session_id), session_id)
        rules.check_page(limit, seq)
        return self._kept(session_id).events[seq : seq + limit]

    async def list(self, limit: int, after: tuple[int, str] | None = None) -> Sequence[SessionRow]:
        """See the contract."""
        rules.check_page(limit)
        if after is not None:
            check_id(after[1])
        kept = [kept for kept in self._sessions.values() if kept != "deleted"]
        places = sorted(((one.header.created_at, one.header.id) for one in kept), reverse=True)
        return [self._row(id) for created_at, id in places if after is None or (created_at, id) < after][:limit]

    async def delete(self, session_id: str) -> None:
        """See the contract."""
        if self._find(session_id) != "deleted":
            rules.present(self._find(session_id), session_id)
            self._sessions[session_id] = "deleted"

    # ---------------------------------------------------------------------------------------- inside

    def _find(self, session_id: str) -> rules.Found:
        kept = self._sessions.get(check_id(session_id))
        if kept is None or kept == "deleted":
            return kept
        left = kept.lease_until - self._lease_clock()
        next_seq, head = kept.last.seq + 1, kept.last.digest
        return rules.Row(kept.header.text, kept.epoch, kept.token, kept.owner, None, left, next_seq, head)

    def _kept(self, session_id: str) -> _Kept:
        kept = self._sessions[session_id]
        assert kept != "deleted"  # the rules have looked
        return kept

    def _digest_at(self, session_id: str, seq: int) -> bytes | None:
        return next((end.digest for end in self._kept(session_id).ends if end.seq == seq), None)

    def _lease_end(self, epoch: Epoch) -> float:
        return self._lease_clock() + epoch.owner.lease_s

    def _store(self, kept: _Kept, batch: Batch | None, epoch: Epoch) -> None:
        """All of it or, when a clock or the batch raises, nothing: what may raise comes first."""
        lease_until = self._lease_end(epoch)
        if batch is not None:
            end = BatchEnd(batch.next_seq - 1, batch.reason, self._wall_clock(), batch.digest)
            kept.title = batch.title or kept.title
            kept.events.extend(batch.events)
            kept.ends.append(end)
        kept.epoch, kept.token, kept.owner = epoch.number, epoch.token, epoch.owner.name
        kept.lease_until = lease_until
        self._sessions[kept.header.id] = kept

    def _log(self, session_id: str, before: int | None) -> StoredLog:
        row = rules.present(self._find(session_id), session_id)
        kept = self._kept(session_id)
        upper = row.next_seq if before is None else max(before, 0)
        ends = tuple(end for end in kept.ends if end.seq < upper)
        events = tuple(kept.events[:upper])
        return StoredLog(session_id, row.header_text, events, ends, row.next_seq, row.head, row.holder)

    def _row(self, session_id: str) -> SessionRow:
        row = rules.present(self._find(session_id), session_id)
        kept = self._kept(session_id)
        times = kept.header.created_at, row.next_seq, kept.last.written_at
        return SessionRow(row.header_text, session_id, *times, row.holder, kept.title)

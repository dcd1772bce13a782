"""What the contract's tests write: sessions, their batches, and one writer that keeps count as a live session would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.session.batch import Batch, Header, Reason
from app.session.identifiers import new_id
from app.session.ownership import Epoch, Owner
from app.session.persistence import SessionPersistence
from app.session.record import SessionEvent
from app.session.values import encode

CREATED_AT = 1_700_000_000_000
LONG = 1000.0
"""Seconds of a lease that no test outlives."""
ALREADY_OVER = -1.0
"""Seconds of a lease that has run out when it begins: no test waits for a clock."""


def owner(name: str = "anna", lease_s: float = LONG) -> Owner:
    """An owner of whose process nothing is known."""
    return Owner(name, lease_s)


def with_lease(epoch: Epoch, lease_s: float) -> Epoch:
    """The same claim, whose next lease lasts that long."""
    return replace(epoch, owner=replace(epoch.owner, lease_s=lease_s))


def message(seq: int, content: Any = "hello", *, id: str | None = None) -> SessionEvent:
    """An `inbox/accepted`, legal wherever it stands in a log: its message id is new."""
    data = {"message": {"id": id or f"m{seq}", "content": content}, "placement": "context"}
    return SessionEvent(seq, CREATED_AT + seq, "inbox/accepted", encode(data))


def messages(first: int, count: int, content: Any = "hello") -> tuple[SessionEvent, ...]:
    """That many of them, one after another."""
    return tuple(message(seq, content) for seq in range(first, first + count))


def title(seq: int, text: str) -> SessionEvent:
    """A `session/title`, which a store shows in its list."""
    return SessionEvent(seq, CREATED_AT + seq, "session/title", encode({"title": text}), ignorable=True)


@dataclass
class Writer:
    """Writes one session to a store. `events`, `batches` and `head` are what was acknowledged to it."""

    store: SessionPersistence
    header: Header
    epoch: Epoch
    head: bytes
    events: list[SessionEvent] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)

    @classmethod
    def new(
        cls, store: SessionPersistence, session_id: str | None = None, *, lease_s: float = LONG, **header: Any
    ) -> Writer:
        """The writer of a session that is not stored yet."""
        made = Header.make(session_id or new_id(), header.pop("created_at", CREATED_AT), **header)
        return cls(store, made, Epoch.first(owner(lease_s=lease_s)), made.digest)

    @property
    def id(self) -> str:
        return self.header.id

    @property
    def seq(self) -> int:
        """The next seq."""
        return len(self.events)

    def batch(self, count: int = 1, reason: Reason = "caller", *, events: Sequence[SessionEvent] = ()) -> Batch:
        """The next batch, not sent: `count` messages, or the events given."""
        return Batch(tuple(events) or messages(self.seq, count), self.head, reason)

    async def send(self, batch: Batch) -> None:
        """Store a batch, and keep count if that was acknowledged."""
        await self.store.append(self.header, batch, self.epoch)
        self.head = batch.digest
        self.events = [*self.events[: batch.first_seq], *batch.events]
        self.batches.append(batch)

    async def write(self, count: int = 1, reason: Reason = "caller", *, events: Sequence[SessionEvent] = ()) -> Batch:
        """Store the next batch."""
        batch = self.batch(count, reason, events=events)
        await self.send(batch)
        return batch

    async def check(self, store: SessionPersistence | None = None) -> None:
        """The store holds exactly what was acknowledged: header, events, borders and reasons of batches, head."""
        log = await (store or self.store).read(self.id)
        assert log.header_text == self.header.text
        assert list(log.events) == self.events
        assert [(end.seq, end.reason, end.digest) for end in log.ends] == [
            (batch.next_seq - 1, batch.reason, batch.digest) for batch in self.batches
        ]
        assert (log.next_seq, log.head) == (self.seq, self.head)

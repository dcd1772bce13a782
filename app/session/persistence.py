"""The contract that every store of sessions keeps, whatever it is made of.

`append` decides by the first row that fits, inside the transaction that writes:

| stored              | batch                                   | outcome                                          |
|---------------------|-----------------------------------------|--------------------------------------------------|
| tombstone           | any                                     | SessionDeleted                                   |
| nothing             | starts at 0, epoch number 1             | header and events stored, the lease begins       |
| nothing             | anything else                           | SessionNotFound                                  |
| another epoch       | any                                     | SessionFenced; SessionExists for a first batch   |
| another header      | any                                     | CorruptLog                                       |
| next seq and head   | starts there, `previous` is that head   | stored, lease renewed                            |
| all of it, equal    | the digest at its last seq is its own   | success, nothing written but the renewed lease   |
| anything else       |                                         | SequenceConflict                                 |

Refusals write nothing. PersistenceUnavailable, and any error not named here, means that the outcome is unknown: the
caller repeats exactly this batch.

An illegal id is an InvalidId before any I/O. A lease lasts the `lease_s` of the epoch's owner, on the store's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from app.session.batch import Batch, BatchEnd, Header
from app.session.errors import PersistenceError
from app.session.ownership import Epoch, Owner
from app.session.record import SessionEvent


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a session: the epoch's number, the owner (None when released), seconds of lease left, below 0 too."""

    epoch: int
    owner: str | None
    lease_left_s: float


@dataclass(frozen=True, slots=True)
class StoredLog:
    """A session as it is stored, not verified: app.session.verification does that.

    `ends` are the ends of its batches in order, `next_seq` and `head` what the store keeps beside them. `torn` says,
    for a store that can have one, what incomplete last batch was left out.
    """

    session_id: str
    header_text: str
    events: tuple[SessionEvent, ...]
    ends: tuple[BatchEnd, ...]
    next_seq: int
    head: bytes
    holder: Holder
    torn: str | None = None


Repair: TypeAlias = Callable[[StoredLog, Epoch], Batch | None]
"""Given what is stored and the new epoch: the batch that closes it, or None. Pure; if it raises, nothing is written."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One line of a list, from the session's own row: no event is read. Times are milliseconds since the epoch.

    A row that cannot be read has a `problem`, and hides no other: then `created_at` and `session_id` are only its place
    in the list, as far as the store can tell them, and the rest says nothing.
    """

    header_text: str
    session_id: str
    created_at: int
    next_seq: int
    last_write: int
    holder: Holder
    title: str | None
    problem: PersistenceError | None = None

    @classmethod
    def unreadable(cls, session_id: str, created_at: int, problem: PersistenceError) -> SessionRow:
        """The row of a session of which no more can be told."""
        return cls("", session_id, created_at, 0, 0, Holder(0, None, 0.0), None, problem)


class SessionPersistence(Protocol):
    """Where sessions are stored. Several sessions may use it at a time; `open` before anything else, `close` last."""

    @property
    def kind(self) -> str:
        """The name that settings and `explain` use."""
        ...

    @property
    def durable(self) -> bool:
        """Whether an acknowledged batch survives a crash of process and machine."""
        ...

    async def open(self) -> None:
        """Connect and check. Raises StoreUnusable, having changed nothing, if the store cannot be used as it is."""
        ...

    async def close(self) -> None:
        """Finish what is being written, then let go of everything. Closing twice is no error."""
        ...

    async def check_free(self, session_id: str) -> None:
        """Raises SessionExists or SessionDeleted if the id cannot be created. Writes nothing."""
        ...

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        """Store a batch by the table above. ValueError before any I/O for an empty batch or one with gaps."""
        ...

    async def acquire(
        self, session_id: str, owner: Owner, *, force: bool = False, repair: Repair | None = None
    ) -> tuple[Epoch, StoredLog]:
        """Take the session: a new epoch, one higher, if it is free, released, its lease has run out, or by force.

        In the same transaction the log is read, `repair` asked, and its batch stored. Returns the log as it was before
        that batch. Raises SessionNotFound, SessionDeleted, SessionHeld, and what `repair` raises.
        """
        ...

    async def renew(self, session_id: str, epoch: Epoch) -> None:
        """Start the lease anew. Raises SessionFenced, SessionDeleted, SessionNotFound."""
        ...

    async def release(self, session_id: str, epoch: Epoch) -> None:
        """End the claim: the epoch may not write any more. Raises as `renew`."""
        ...

    async def read(self, session_id: str, *, before: int | None = None) -> StoredLog:
        """The session as it is stored, or its whole batches and the rest of events with a seq below `before`.

        One consistent picture. Raises SessionNotFound, SessionDeleted; CorruptLog for what cannot be read as events.
        """
        ...

    async def read_from(self, session_id: str, seq: int, limit: int = 1000) -> Sequence[SessionEvent]:
        """Committed events from `seq` on, in order, at most `limit`: none at or past the end.

        Raises SessionNotFound, SessionDeleted, CorruptLog; ValueError for a seq below 0 or a limit below 1.
        """
        ...

    async def list(self, limit: int, after: tuple[int, str] | None = None) -> Sequence[SessionRow]:
        """At most `limit` sessions, newest first, after that position; neither empty nor deleted ones.

        The order is that of (created_at, id), both descending. ValueError for a limit below 1.
        """
        ...

    async def delete(self, session_id: str) -> None:
        """Drop header and events for good and leave a tombstone. Deleting twice is no error. Raises SessionNotFound."""
        ...

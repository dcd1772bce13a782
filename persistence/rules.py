"""What the contract decides before a store does anything: from the session's row and the request alone, without I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.session.batch import Batch, Header
from app.session.errors import (
    CorruptLog,
    SequenceConflict,
    SessionDeleted,
    SessionExists,
    SessionFenced,
    SessionHeld,
    SessionNotFound,
    Stored,
)
from app.session.ownership import Epoch, Process
from app.session.persistence import Holder


@dataclass(frozen=True, slots=True)
class Row:
    """What a store keeps of a session beside its events. `token` and `owner` are None once it was released."""

    header_text: str
    epoch: int
    token: str | None
    owner: str | None
    process: Process | None
    lease_left_s: float
    next_seq: int
    head: bytes

    @property
    def holder(self) -> Holder:
        return Holder(self.epoch, self.owner, self.lease_left_s)

    @property
    def stored(self) -> Stored:
        return Stored(self.epoch, self.next_seq, self.head)


Found: TypeAlias = Row | Literal["deleted"] | None
"""What stands under an id: a session, a tombstone, or nothing."""


def present(found: Found, session_id: str) -> Row:
    """The row of a session that is there. Raises SessionNotFound, SessionDeleted."""
    if found is None:
        raise SessionNotFound(session_id)
    if found == "deleted":
        raise SessionDeleted(session_id)
    return found


def check_free(found: Found, session_id: str) -> None:
    """Raises SessionExists or SessionDeleted if a session cannot be created under this id."""
    if found is not None:
        present(found, session_id)
        raise SessionExists(session_id)


def check_claim(found: Found, session_id: str, epoch: Epoch) -> Row:
    """The row, if `epoch` is the claim that may write. Raises SessionNotFound, SessionDeleted, SessionFenced."""
    row = present(found, session_id)
    if (row.epoch, row.token) != (epoch.number, epoch.token):
        raise SessionFenced(session_id, row.stored)
    return row


def check_takeable(found: Found, session_id: str, *, force: bool) -> Row:
    """The row, if anybody may claim the session now. Raises SessionNotFound, SessionDeleted, SessionHeld.

    A claim whose process is known to have ended on this machine counts as run out.
    """
    row = present(found, session_id)
    if force or row.owner is None or row.lease_left_s <= 0 or (row.process and row.process.is_gone()):
        return row
    raise SessionHeld(session_id, row.owner, row.lease_left_s)


def decide(
    found: Found, header: Header, batch: Batch, epoch: Epoch, digest_at: Callable[[int], bytes | None]
) -> Literal["create", "store", "repeated"]:
    """What to do with a batch: the table in app.session.persistence. Raises its refusals.

    `digest_at` tells the digest kept with the event of that seq, None if no batch ends there. Being chained, it equals
    the batch's own only if everything up to there is equal.
    """
    is_first = batch.first_seq == 0 and epoch.number == 1
    if found is None and is_first:
        return "create"
    try:
        row = check_claim(found, header.id, epoch)
    except SessionFenced:
        if is_first:
            raise SessionExists(header.id) from None
        raise
    if row.header_text != header.text:
        raise CorruptLog(header.id, "the header", "it is not the one that the session was created with")
    if (batch.first_seq, batch.previous) == (row.next_seq, row.head):
        return "store"
    if batch.next_seq <= row.next_seq and digest_at(batch.next_seq - 1) == batch.digest:
        return "repeated"
    raise SequenceConflict(header.id, row.next_seq, batch.first_seq, row.stored)


def check_repair(batch: Batch | None, row: Row) -> None:
    """Raises ValueError if what a repair returned does not continue the log that it was given."""
    if batch is not None:
        batch.check()
        if (batch.first_seq, batch.previous) != (row.next_seq, row.head):
            raise ValueError(f"the repair starts at {batch.first_seq}, the log goes on at {row.next_seq}")


def check_page(limit: int, seq: int = 0) -> None:
    """Raises ValueError for what is no size of a page, or no seq to start from."""
    if type(limit) is not int or limit < 1:
        raise ValueError(f"limit is an integer of 1 or more, not {limit!r}")
    if type(seq) is not int or seq < 0:
        raise ValueError(f"a seq is an integer of 0 or more, not {seq!r}")

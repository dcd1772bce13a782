"""Batches into the database: the arguments of the statements that append, and what their answers mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.session.batch import Batch, Header
from app.session.errors import (
    CorruptLog,
    PersistenceError,
    PersistenceUnavailable,
    SequenceConflict,
    SessionDeleted,
    SessionExists,
    SessionFenced,
    SessionNotFound,
    Stored,
)
from app.session.ownership import Epoch
from persistence.postgres.connecting import Connection
from persistence.postgres.locked import Locked
from persistence.postgres.queries import Queries

_NOTHING = "INSERT 0 0"
"""What the server says of a statement that found no row to change."""


@dataclass(frozen=True, slots=True)
class Writing:
    """One append as it was asked for."""

    header: Header
    batch: Batch
    epoch: Epoch

    @property
    def creates(self) -> bool:
        """Whether the session begins with it."""
        return self.batch.first_seq == 0 and self.epoch.number == 1


@dataclass(frozen=True, slots=True)
class Writer:
    """Sends batches. `levels` are the values of synchronous_commit under which a commit is a checkpoint."""

    queries: Queries
    levels: tuple[str, ...]

    async def one(self, connection: Connection, writing: Writing, *, is_repeated: bool = False) -> None:
        """Store a batch. Raises what the contract says, and Locked. `is_repeated`: it was sent before.

        What can be stored at once takes one plain statement. Anything else is settled by the database's function.
        """
        header, batch, epoch = writing.header, writing.batch, writing.epoch
        events = batch.events
        given = (
            self.levels,
            header.id,
            epoch.number,
            epoch.token,
            epoch.owner.lease_s,
            batch.first_seq,
            batch.previous,
            batch.digest,
            header.digest,
            batch.reason,
            batch.title,
            [event.time for event in events],
            [event.type for event in events],
            [event.ignorable for event in events],
            [event.text for event in events],
        )
        is_new = not is_repeated and not writing.creates
        if is_new and await connection.execute(self.queries.append, *given) != _NOTHING:
            return
        first = header.text if writing.creates else None, header.created_at, epoch.owner.name
        answer = await connection.fetchrow(self.queries.settle, *given, *first)
        assert answer is not None  # the function answers one row
        outcome, *kept, is_committed = answer
        if outcome == "locked":
            raise Locked
        if outcome not in ("stored", "created", "repeated"):
            raise _refusal(outcome, writing, kept, is_committed if is_repeated else None)

    async def together(self, connection: Connection, writings: Sequence[Writing]) -> set[str]:
        """Store one batch each of several sessions, none of which is a first one. The ids of those that were."""
        batches: list[tuple[Any, ...]] = []
        events: list[tuple[Any, ...]] = []
        for n, (header, batch, epoch) in enumerate(((w.header, w.batch, w.epoch) for w in writings), start=1):
            claim = header.id, epoch.number, epoch.token, epoch.owner.lease_s
            place = batch.first_seq, batch.previous, batch.next_seq, batch.digest, header.digest
            batches.append((*claim, *place, batch.reason, batch.title))
            events += [(n, event.seq, event.time, event.type, event.ignorable, event.text) for event in batch.events]
        columns = *zip(*batches, strict=True), *zip(*events, strict=True)
        stored = await connection.fetch(self.queries.append_together, self.levels, *columns)
        return {id for (id,) in stored}


def _refusal(outcome: str, writing: Writing, kept: Sequence[Any], is_committed: bool | None) -> PersistenceError:
    session_id, batch = writing.header.id, writing.batch
    match outcome:
        case "missing":
            return SessionNotFound(session_id)
        case "deleted":
            return SessionDeleted(session_id)
        case "exists":
            return SessionExists(session_id)
        case "fenced":
            return SessionFenced(session_id, Stored(*kept), is_committed)
        case "header":
            return CorruptLog(session_id, "the header", "it is not the one that the session was created with")
        case "conflict":
            stored = Stored(*kept)
            return SequenceConflict(session_id, stored.next_seq, batch.first_seq, stored)
        case "weak":
            reason = "synchronous_commit was weakened for this user or database, so a commit would not be durable"
            return PersistenceUnavailable(session_id, f"{reason}; set it back to on")
        case _:
            return PersistenceUnavailable(session_id, f"an answer that no build gives: {outcome!r}")

"""Sessions out of the database: rows into what the contract shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.session.batch import BatchEnd
from app.session.errors import CorruptLog, SessionDeleted, SessionNotFound
from app.session.persistence import Holder, SessionRow, StoredLog
from app.session.record import SessionEvent
from persistence.postgres.connecting import Connection
from persistence.postgres.locked import Locked
from persistence.postgres.queries import Queries
from persistence.rules import Found, Row

_MAX = (1 << 63) - 1


async def find(connection: Connection, query: str, session_id: str, *arguments: Any) -> Found:
    """What stands under an id, by one of the statements that show a session's row. Raises CorruptLog, Locked."""
    values = await connection.fetchrow(query, session_id, *arguments)
    if values is None:
        return None
    epoch, token, owner, lease_left_s, next_seq, head, header, is_locked = values
    if is_locked:
        raise Locked
    if header is None:
        return "deleted"
    if not header.isascii():
        raise CorruptLog(session_id, "the session's row", "its header is not what it has to be")
    return Row(header, epoch, token, owner, None, lease_left_s, next_seq, head)


async def read_log(
    connection: Connection, queries: Queries, session_id: str, row: Row, before: int | None = None
) -> StoredLog:
    """The session's events below `before`, or all. Raises CorruptLog."""
    events: list[SessionEvent] = []
    ends: list[BatchEnd] = []
    upper = _MAX if before is None else clamped(before)
    for *event, reason, written_at, digest in await connection.fetch(queries.read, session_id, upper):
        events.append(_event(session_id, event))
        if digest is not None:
            if reason is None or written_at is None:
                raise CorruptLog(session_id, f"seq {event[0]}", "its columns are not those of a batch's end")
            ends.append(BatchEnd(event[0], reason, written_at, digest))
    return StoredLog(session_id, row.header_text, tuple(events), tuple(ends), row.next_seq, row.head, row.holder)


async def read_page(
    connection: Connection, queries: Queries, session_id: str, seq: int, limit: int
) -> list[SessionEvent]:
    """At most `limit` events from `seq` on. Raises SessionNotFound, SessionDeleted, CorruptLog."""
    rows = await connection.fetch(queries.read_from, session_id, clamped(seq), clamped(limit))
    if not rows:
        raise SessionNotFound(session_id)
    if rows[0]["is_deleted"]:
        raise SessionDeleted(session_id)
    return [_event(session_id, event) for _, *event in rows if event[0] is not None]


async def read_list(
    connection: Connection, queries: Queries, limit: int, after: tuple[int, str] | None
) -> list[SessionRow]:
    """A page of sessions, from their rows alone."""
    if after is None:
        found = await connection.fetch(queries.list_from_the_newest, clamped(limit))
    else:
        found = await connection.fetch(queries.list, clamped(limit), clamped(after[0]), after[1])
    rows = []
    for session_id, header, created_at, next_seq, last_write, epoch, owner, lease_left_s, title in found:
        holder = Holder(epoch, owner, lease_left_s)
        rows.append(SessionRow(header, session_id, created_at, next_seq, last_write, holder, title))
    return rows


def clamped(value: int) -> int:
    """An integer that the database can be asked with, for one that may be beyond what it knows."""
    return max(-_MAX, min(value, _MAX))


def _event(session_id: str, values: Sequence[Any]) -> SessionEvent:
    seq, time, type_, ignorable, data = values
    if not data.isascii():
        raise CorruptLog(session_id, f"seq {seq}", "its columns are not those of an event")
    return SessionEvent(seq, time, type_, data, ignorable)

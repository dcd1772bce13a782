"""Sessions out of the database, inside a transaction that is open already."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from app.session.batch import BatchEnd
from app.session.errors import CorruptLog
from app.session.ownership import Process
from app.session.persistence import Holder, SessionRow, StoredLog
from app.session.record import SessionEvent
from persistence.rules import Found, Row
from persistence.sqlite import errors

MAX_EVENTS = 1 << 32
_MAX_INTEGER = (1 << 63) - 1

_ROW = """
SELECT key, epoch, token, owner, boot_id, pid, started, lease_until - (SELECT now FROM clock), next_seq, head, header
FROM sessions WHERE id = ?
"""
_EVENTS = """
SELECT place, type, time, ignorable, data, reason, written_at, digest
FROM events WHERE place >= ? AND place < ? ORDER BY place LIMIT ?
"""
_DIGEST = "SELECT digest FROM events WHERE place = ?"
_LIST = """
SELECT id, header, created_at, next_seq, last_write, epoch, owner, lease_until - (SELECT now FROM clock), title
FROM sessions WHERE header IS NOT NULL AND (created_at, id) < (?, ?) ORDER BY created_at DESC, id DESC LIMIT ?
"""
_LIST_FROM_THE_NEWEST = """
SELECT id, header, created_at, next_seq, last_write, epoch, owner, lease_until - (SELECT now FROM clock), title
FROM sessions WHERE header IS NOT NULL ORDER BY created_at DESC, id DESC LIMIT ?
"""
_STRAYS = "SELECT DISTINCT session FROM events WHERE session NOT IN (SELECT key FROM sessions) LIMIT 20"
_INT, _TEXT = (int,), (str,)
_MAYBE_INT, _MAYBE_TEXT = (int, type(None)), (str, type(None))
_ROW_KINDS = (_INT, _INT, *[_MAYBE_TEXT] * 3, *[_MAYBE_INT] * 2, _INT, _INT)
_LIST_KINDS = (_TEXT, _TEXT, _INT, _INT, _INT, _INT, _MAYBE_TEXT, _INT, _MAYBE_TEXT)


def find(connection: sqlite3.Connection, session_id: str) -> tuple[int, Found]:
    """A session's key and what stands under its id; the key is 0 if nothing does. Raises CorruptLog."""
    try:
        values = connection.execute(_ROW, (session_id,)).fetchone()
    except errors.FOREIGN as error:
        raise errors.meaning(error, session_id, "the session's row") from None
    if values is None:
        return 0, None
    *columns, head, header = values
    if header is None:
        return columns[0], "deleted"
    _check(session_id, columns, _ROW_KINDS)
    if type(head) is not bytes or type(header) is not str or not header.isascii():
        raise CorruptLog(session_id, "the session's row", "its header or digest is not what it has to be")
    key, epoch, token, owner, boot_id, pid, started, lease_left, next_seq = columns
    process = None if boot_id is None or pid is None or started is None else Process(boot_id, pid, started)
    return key, Row(header, epoch, token, owner, process, lease_left / 1000, next_seq, head)


def read_log(
    connection: sqlite3.Connection, session_id: str, key: int, row: Row, before: int | None = None
) -> StoredLog:
    """The session's events below `before`, or all. Raises CorruptLog."""
    events: list[SessionEvent] = []
    ends: list[BatchEnd] = []
    upper = MAX_EVENTS if before is None else max(0, min(before, MAX_EVENTS))
    for event, end in _read(connection, session_id, key, 0, upper, -1):
        events.append(event)
        if end is not None:
            ends.append(end)
    return StoredLog(session_id, row.header_text, tuple(events), tuple(ends), row.next_seq, row.head, row.holder)


def read_events(connection: sqlite3.Connection, session_id: str, key: int, seq: int, limit: int) -> list[SessionEvent]:
    """At most `limit` events from `seq` on. Raises CorruptLog."""
    seq, limit = min(seq, MAX_EVENTS), min(limit, MAX_EVENTS)
    return [event for event, _ in _read(connection, session_id, key, seq, MAX_EVENTS, limit)]


def digest_at(connection: sqlite3.Connection, key: int, seq: int) -> bytes | None:
    """The digest kept with that event; None if no batch ends there."""
    found = connection.execute(_DIGEST, (place(key, seq),)).fetchone()
    return None if found is None else found[0]


def read_list(connection: sqlite3.Connection, limit: int, after: tuple[int, str] | None) -> list[SessionRow]:
    """A page of sessions, from their rows alone."""
    limit = min(limit, MAX_EVENTS)
    if after is None:
        query: tuple[str, tuple[Any, ...]] = _LIST_FROM_THE_NEWEST, (limit,)
    else:
        query = _LIST, (max(-_MAX_INTEGER, min(after[0], _MAX_INTEGER)), after[1], limit)
    connection.text_factory = _any_text  # its own gives up the whole page for one text that is not UTF-8
    try:
        return [_listed(values) for values in connection.execute(*query)]
    finally:
        connection.text_factory = str


def faults(connection: sqlite3.Connection) -> list[str]:
    """What is wrong with the database, twenty things of a kind at most."""
    found = [line for (text,) in connection.execute("PRAGMA integrity_check(20)") for line in text.splitlines()]
    strays = connection.execute(_STRAYS).fetchall()
    return [line for line in found if line != "ok" and not line.startswith("***")] + [
        f"events of a session of key {key}: there is none" for (key,) in strays
    ]


def _any_text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogateescape")


def _listed(values: Sequence[Any]) -> SessionRow:
    session_id, header, created_at, next_seq, last_write, epoch, owner, lease_left, title = values
    try:
        _check(session_id, values, _LIST_KINDS)
        "".join(value for value in values if type(value) is str).encode()
    except (CorruptLog, UnicodeEncodeError):
        name = str(session_id).encode("utf-8", "backslashreplace").decode()
        problem = CorruptLog(name, "the session's row", "its columns are not what they have to be")
        return SessionRow.unreadable(name, created_at if type(created_at) is int else 0, problem)
    return SessionRow(
        header, session_id, created_at, next_seq, last_write, Holder(epoch, owner, lease_left / 1000), title
    )


def place(key: int, seq: int) -> int:
    """Where an event stands in the one tree of all events."""
    return (key << 32) + seq


def _read(
    connection: sqlite3.Connection, session_id: str, key: int, seq: int, upper: int, limit: int
) -> Iterator[tuple[SessionEvent, BatchEnd | None]]:
    base = place(key, 0)
    expected = seq
    try:
        for at, type_, time, ignorable, data, reason, written_at, digest in connection.execute(
            _EVENTS, (base + seq, base + upper, limit)
        ):
            expected = at - base
            if type(data) is not str or not data.isascii() or type(type_) is not str or type(time) is not int:
                raise CorruptLog(session_id, f"seq {expected}", "its columns are not those of an event")
            end = None
            if digest is not None:
                if type(digest) is not bytes or type(reason) is not str or type(written_at) is not int:
                    raise CorruptLog(session_id, f"seq {expected}", "its columns are not those of a batch's end")
                end = BatchEnd(expected, reason, written_at, digest)
            yield SessionEvent(expected, time, type_, data, ignorable == 1), end
            expected += 1
    except errors.FOREIGN as error:
        raise errors.meaning(error, session_id, f"seq {expected}") from None


def _check(session_id: str, values: Sequence[object], kinds: Sequence[tuple[type, ...]]) -> None:
    if any(type(value) not in allowed for value, allowed in zip(values, kinds, strict=True)):
        raise CorruptLog(session_id, "the session's row", "its columns are not of their kinds")

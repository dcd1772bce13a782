"""Sessions into the database, inside a transaction that holds the write lock already."""

from __future__ import annotations

import sqlite3
from functools import partial

from app.session.batch import Batch, Header
from app.session.errors import SessionNotFound
from app.session.ownership import Epoch, Owner
from persistence.rules import check_claim, decide
from persistence.sqlite.reading import MAX_EVENTS, digest_at, find, place

# The two statements of every checkpoint. Parameters without names, a row count instead of RETURNING: named ones and
# returned rows cost as much again as the rest of a transaction, its sync left aside.
_ADVANCE = """
UPDATE sessions
SET next_seq = ?, head = ?, title = coalesce(?, title),
    last_write = (SELECT now FROM clock), lease_until = (SELECT now FROM clock) + ?
WHERE key = ? AND epoch = ? AND token = ? AND next_seq = ? AND head = ? AND header = ?
"""
_EVENT = "INSERT INTO events (place, type, time, ignorable, data) VALUES (?, ?, ?, ?, ?)"
_LAST_EVENT = """
INSERT INTO events (place, type, time, ignorable, data, reason, digest, written_at)
VALUES (?, ?, ?, ?, ?, ?, ?, (SELECT now FROM clock))
"""
_CREATE = """
INSERT INTO sessions (
    id, epoch, token, owner, boot_id, pid, started, lease_until, next_seq, head, created_at, last_write, title, header
)
SELECT ?, ?, ?, ?, ?, ?, ?, now + ?, ?, ?, ?, now, ?, ? FROM clock
"""
_CLAIM = """
UPDATE sessions
SET epoch = ?, token = ?, owner = ?, boot_id = ?, pid = ?, started = ?, lease_until = (SELECT now FROM clock) + ?
WHERE key = ?
"""
_RENEW = "UPDATE sessions SET lease_until = (SELECT now FROM clock) + ? WHERE key = ?"
_RELEASE = """
UPDATE sessions
SET token = NULL, owner = NULL, boot_id = NULL, pid = NULL, started = NULL, lease_until = (SELECT now FROM clock)
WHERE key = ?
"""
_BURY = """
UPDATE sessions
SET token = NULL, owner = NULL, boot_id = NULL, pid = NULL, started = NULL, lease_until = 0, title = NULL, header = NULL
WHERE id = ? AND header IS NOT NULL
RETURNING key
"""
_IS_BURIED = "SELECT 1 FROM sessions WHERE id = ?"
_DROP_EVENTS = "DELETE FROM events WHERE place >= ? AND place < ?"

_MAX_KEYS = 10_000


class Keys:
    """The keys of the sessions that one writer has met. Only hints: who uses one compares the header, id included."""

    def __init__(self) -> None:
        self._keys: dict[str, int] = {}

    def get(self, session_id: str) -> int:
        """The key of a session, 0 if it is not known here."""
        return self._keys.get(session_id, 0)

    def set(self, session_id: str, key: int) -> None:
        if len(self._keys) >= _MAX_KEYS:
            self._keys.clear()
        self._keys[session_id] = key


def append(keys: Keys, header: Header, batch: Batch, epoch: Epoch, connection: sqlite3.Connection) -> None:
    """Store a batch by the contract's table. Mostly one UPDATE decides; if it does not, the row tells why."""
    key = keys.get(header.id)
    if not _advance(connection, key, header.text, batch, epoch):
        key, found = find(connection, header.id)
        outcome = decide(found, header, batch, epoch, partial(digest_at, connection, key))
        if outcome == "repeated":
            connection.execute(_RENEW, (_lease_ms(epoch.owner), key))
            return
        if outcome == "create":
            key = _create(connection, header, batch, epoch)
        elif not _advance(connection, key, header.text, batch, epoch):
            raise RuntimeError(f"session {header.id!r}: the statement refused what the rules allow")
        keys.set(header.id, key)
    _insert(connection, key, batch)


def claim(connection: sqlite3.Connection, key: int, header_text: str, epoch: Epoch, batch: Batch | None) -> None:
    """Make `epoch` the session's, and store the batch that closes its log, if there is one."""
    connection.execute(_CLAIM, (*_claim(epoch), _lease_ms(epoch.owner), key))
    if batch is not None:
        if not _advance(connection, key, header_text, batch, epoch):
            raise RuntimeError(f"the batch of a repair does not continue the log: {batch.events[:1]}")
        _insert(connection, key, batch)


def renew(session_id: str, epoch: Epoch, connection: sqlite3.Connection) -> None:
    """Start the lease anew."""
    key, found = find(connection, session_id)
    check_claim(found, session_id, epoch)
    connection.execute(_RENEW, (_lease_ms(epoch.owner), key))


def release(session_id: str, epoch: Epoch, connection: sqlite3.Connection) -> None:
    """End the claim."""
    key, found = find(connection, session_id)
    check_claim(found, session_id, epoch)
    connection.execute(_RELEASE, (key,))


def delete(session_id: str, connection: sqlite3.Connection) -> None:
    """Drop header and events, leave the tombstone. A damaged session can be deleted too: nothing of it is read."""
    for (key,) in connection.execute(_BURY, (session_id,)).fetchall():
        connection.execute(_DROP_EVENTS, (place(key, 0), place(key, MAX_EVENTS)))
    if connection.execute(_IS_BURIED, (session_id,)).fetchone() is None:
        raise SessionNotFound(session_id)


def _advance(connection: sqlite3.Connection, key: int, header_text: str, batch: Batch, epoch: Epoch) -> bool:
    new = (batch.next_seq, batch.digest, batch.title, _lease_ms(epoch.owner))
    expected = (key, epoch.number, epoch.token, batch.first_seq, batch.previous, header_text)
    return connection.execute(_ADVANCE, (*new, *expected)).rowcount == 1


def _create(connection: sqlite3.Connection, header: Header, batch: Batch, epoch: Epoch) -> int:
    place_in_log = (batch.next_seq, batch.digest, header.created_at, batch.title, header.text)
    values = (header.id, *_claim(epoch), _lease_ms(epoch.owner), *place_in_log)
    key = connection.execute(_CREATE, values).lastrowid
    assert key is not None  # a row was inserted
    return key


def _insert(connection: sqlite3.Connection, key: int, batch: Batch) -> None:
    base = place(key, 0)
    *others, last = [(base + event.seq, event.type, event.time, event.ignorable, event.text) for event in batch.events]
    if others:
        connection.executemany(_EVENT, others)
    connection.execute(_LAST_EVENT, (*last, batch.reason, batch.digest))


def _claim(epoch: Epoch) -> tuple[object, ...]:
    process = epoch.owner.process
    of_process = (None, None, None) if process is None else (process.boot_id, process.pid, process.started)
    return epoch.number, epoch.token, epoch.owner.name, *of_process


def _lease_ms(owner: Owner) -> int:
    return round(owner.lease_s * 1000)

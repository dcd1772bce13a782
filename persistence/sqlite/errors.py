"""What SQLite's errors mean to a session: the one table."""

import sqlite3

from app.session.errors import CorruptLog, PersistenceUnavailable

FOREIGN = (sqlite3.Error, UnicodeDecodeError)
"""What using a database can raise; the second when SQLite's own message quotes damaged text."""

_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "another process keeps the database locked",
    sqlite3.SQLITE_CANTOPEN: "the database file cannot be opened",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the database file cannot be read or written",
    sqlite3.SQLITE_LOCKED: "the database is locked",
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_PERM: "access to the database file was refused",
    sqlite3.SQLITE_PROTOCOL: "the locks of the database cannot be had",
    sqlite3.SQLITE_READONLY: "the database file may not be written",
}
_DAMAGED = {
    sqlite3.SQLITE_CONSTRAINT: "the database holds rows where there should be none",
    sqlite3.SQLITE_CORRUPT: "the database file is damaged",
    sqlite3.SQLITE_ERROR: "the schema is not what it has to be",  # our statements are fixed: they cannot be wrong
    sqlite3.SQLITE_NOTADB: "the file is not a database",
    None: "a text is not UTF-8",  # found by Python's module, so without a code of SQLite's
}


def primary(error: BaseException) -> int | None:
    """SQLite's primary result code of an error; None if it did not come from SQLite."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def reason(error: Exception) -> str:
    """What an error means, for a person."""
    code = primary(error)
    known = _UNAVAILABLE.get(code or 0) or _DAMAGED.get(code)
    detail = getattr(error, "sqlite_errorname", None)  # never the error's text: it may quote what is stored
    return f"{known or 'unexpected'} ({detail or type(error).__name__})"


def meaning(error: Exception, session_id: str, where: str) -> CorruptLog | PersistenceUnavailable:
    """The error of ours to raise instead; `where` says what was being read."""
    if primary(error) in _DAMAGED:
        return CorruptLog(session_id, where, reason(error))
    return PersistenceUnavailable(session_id, reason(error))

"""What Postgres' errors, and those of the way to it, mean to a session: the one table, by SQLSTATE."""

from __future__ import annotations

import asyncio
import ssl

import asyncpg

from app.session.errors import CorruptLog, PersistenceError, PersistenceUnavailable

FOREIGN = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
"""What using a connection can raise."""

_MIGRATE = "the schema is missing or not whole; run `beforehand migrate`"
_POOLER = "a transaction pooler stands in between; set persistence.statement_cache_size to 0"

# The first entry that the SQLSTATE starts with decides.
_UNAVAILABLE = {
    "08": "the connection was lost",
    "25006": "the server takes no writes: it is a standby, or told to be read-only",
    "25P03": "the transaction stood idle too long",
    "26000": _POOLER,
    "28": "the server refused this user",
    "3D000": "there is no such database",
    "3F000": _MIGRATE,
    "40001": "other transactions were in the way",
    "40P01": "other transactions were in the way",
    "42501": "this user lacks a privilege on the schema",
    "42703": _MIGRATE,
    "42883": _MIGRATE,
    "42P01": _MIGRATE,
    "42P05": _POOLER,
    "53100": "the server's disk is full",
    "53200": "the server is out of memory",
    "53300": "the server has no connection left",
    "55P03": "a lock was not to be had in time",
    "57014": "the statement took too long (statement_timeout_ms)",
    "57P01": "the connection was ended by an administrator",
    "57P02": "the server crashed and starts anew",
    "57P03": "the server is starting up or shutting down",
}
_DAMAGED = {
    "23": "the database holds rows where there should be none, or lacks some",
    "XX001": "the database is damaged",
    "XX002": "an index of the database is damaged",
}
_IN_THE_WAY = ("40001", "40P01")
_LOST = ("08", "57P01", "57P02", "57P03", "25P03")


def is_in_the_way(error: BaseException) -> bool:
    """Whether the transaction was undone because of others, and would do if it were repeated."""
    return _sqlstate(error).startswith(_IN_THE_WAY)


def is_lost(error: BaseException) -> bool:
    """Whether the connection broke: what had been asked may have been done or not."""
    if isinstance(error, ConnectionError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        # The driver's own errors: it saw the connection end, or begin to. One that is a ValueError blames what it got.
        return not isinstance(error, ValueError)
    return isinstance(error, asyncpg.PostgresError) and _sqlstate(error).startswith(_LOST)


def leaves_the_connection_usable(error: BaseException) -> bool:
    """Whether the server answered, and the connection can do the next thing. A server that takes no writes cannot."""
    sqlstate = _sqlstate(error)
    return bool(sqlstate) and not sqlstate.startswith((*_LOST, "25006", "26000", "42P05"))


def reason(error: BaseException) -> str:
    """What an error means, for a person; never its text, which may quote what is stored, or how to get at it."""
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "it did not answer in time (TimeoutError)"
    sqlstate = _sqlstate(error)
    known = next(
        (text for table in (_UNAVAILABLE, _DAMAGED) for code, text in table.items() if sqlstate.startswith(code)), None
    )
    if isinstance(error, ssl.SSLError) or type(error) is ConnectionError:  # the driver's own, when a server has no TLS
        return "it offers no TLS, or its certificate does not verify; sslmode in the DSN can ask for less"
    if isinstance(error, OSError):
        return f"it cannot be reached ({error.strerror or type(error).__name__})"
    known = known or ("the connection was lost" if is_lost(error) else "unexpected")
    return f"{known} ({sqlstate or type(error).__name__})"


def meaning(error: BaseException, session_id: str, where: str = "the session's rows") -> PersistenceError:
    """The error of ours to raise instead; `where` says what was being read or written."""
    if isinstance(error, PersistenceError):
        return error
    if _sqlstate(error).startswith(tuple(_DAMAGED)):
        return CorruptLog(session_id, where, reason(error))
    return PersistenceUnavailable(session_id, reason(error))


def _sqlstate(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or ""

"""One connection to the database file, for one thread: transactions on it, and patience with other processes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

from app.session.errors import StoreUnusable
from persistence.sqlite import errors, file

T = TypeVar("T")


class Database:
    """A connection, opened again when it has to be.

    A connection keeps the file that it opened even when another one takes its place (a restored backup): what it then
    acknowledges would be gone. So each use looks first whether the path still leads to the same file.
    """

    def __init__(self, path: Path, mode: Literal["rw", "ro"], busy_timeout_s: float) -> None:
        self._path = path.absolute()
        self._mode = mode
        self._busy_timeout_s = busy_timeout_s
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    def open(self) -> None:
        """Open the file; a writer creates it if there is none. Raises StoreUnusable, having changed no other file."""
        try:
            if self._mode == "rw":
                file.prepare(self._path)
            self._connect()
        except errors.FOREIGN as error:
            raise StoreUnusable(str(self._path), errors.reason(error)) from None
        except OSError as error:
            raise StoreUnusable(str(self._path), error.strerror or str(error)) from error

    def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """What `job` returns, done in one transaction: a writer has the database to itself, a reader sees one state."""
        connection = self._current()
        try:
            self._patiently(connection, "BEGIN IMMEDIATE" if self._mode == "rw" else "BEGIN")
            # fp: sqlite.begun
            result = job(connection)
            # fp: sqlite.committing
            connection.execute("COMMIT")
        except BaseException as error:  # whatever it was, the transaction ends here
            self._roll_back(connection)
            if errors.primary(error) == sqlite3.SQLITE_READONLY:
                self.close()  # a -wal file that cannot be opened for writing is opened for reading, and stays so
            raise
        # fp: sqlite.committed
        return result

    def close(self) -> None:
        """Let go of the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # ---------------------------------------------------------------------------------------- inside

    def _current(self) -> sqlite3.Connection:
        if self._connection is None or file.identity(self._path) != self._file:
            self.close()
            return self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        connection = file.connect(self._path, self._mode, self._busy_timeout_s)
        try:
            connection.execute("PRAGMA cell_size_check = ON")  # a damaged page is told, not followed
            if self._mode == "rw":
                self._prepare_for_writing(connection)
            else:
                file.check_version(self._path, connection)
            self._file = file.identity(self._path)
        except BaseException:  # nobody else knows of this connection
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare_for_writing(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # where a plain sync stops at the disk's cache: macOS
        self._patiently(connection, "BEGIN IMMEDIATE")  # of several processes that start at once, one writes the schema
        try:
            file.install(self._path, connection)
            # fp: sqlite.schema_made
            connection.execute("COMMIT")
        except BaseException:  # it stays as it was: empty, or somebody else's
            self._roll_back(connection)
            raise
        journal = self._patiently(connection, "PRAGMA journal_mode = WAL").fetchone()[0]
        if (journal, file.number(connection, "PRAGMA synchronous")) != ("wal", 2):
            raise StoreUnusable(
                str(self._path), f"its journal is {journal!r} where 'wal' with full synchronisation is needed"
            )
        # fp: sqlite.ready
        connection.execute("PRAGMA busy_timeout = 0")  # from here on, `_patiently` waits

    def _patiently(self, connection: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
        """Wait for a lock by asking every millisecond.

        SQLite's own waiting backs off to 100 ms, which among busy processes costs five times as much at the tail; and
        it does not wait where it fears a deadlock.
        """
        deadline: float | None = None
        while True:
            try:
                return connection.execute(statement)
            except sqlite3.OperationalError as error:
                now = time.monotonic()
                deadline = deadline or now + self._busy_timeout_s
                if errors.primary(error) != sqlite3.SQLITE_BUSY or now >= deadline:
                    raise
            time.sleep(0.001)

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:  # the connection is past helping; what is uncommitted ends with it
            self.close()

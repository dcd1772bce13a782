"""The database file: created for its owner alone, checked before anything is changed, opened in the one safe way."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Literal, TypeVar

from app.session.errors import StoreUnusable
from persistence.sqlite import errors

T = TypeVar("T")

APPLICATION_ID = 0x62666864
VERSION = 1
SCHEMA = Path(__file__).with_name("schema.sql")

_COUNT_OBJECTS = "SELECT count(*) FROM sqlite_schema"
_preparing = threading.Lock()


class Database:
    """One connection to the file, for one thread.

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
                with _preparing:  # closing a file drops the locks that SQLite holds on it for this whole process
                    self._refuse_foreign()
                    self._create()
            self._connect()
        except errors.FOREIGN as error:
            raise StoreUnusable(str(self._path), errors.reason(error)) from None
        except OSError as error:
            raise StoreUnusable(str(self._path), error.strerror or str(error)) from error

    def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """What `job` returns, done in one transaction: a writer has the database to itself, a reader sees one state."""
        connection = self._current()
        try:
            self._begin(connection)
            result = job(connection)
            connection.execute("COMMIT")
        except BaseException:  # whatever it was, the transaction ends here
            self._roll_back(connection)
            raise
        return result

    def close(self) -> None:
        """Let go of the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # ---------------------------------------------------------------------------------------- a transaction

    def _current(self) -> sqlite3.Connection:
        if self._connection is None or _identity(self._path) != self._file:
            self.close()
            return self._connect()
        return self._connection

    def _begin(self, connection: sqlite3.Connection) -> None:
        self._patiently(connection, "BEGIN IMMEDIATE" if self._mode == "rw" else "BEGIN")

    def _patiently(self, connection: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
        """SQLite waits for a lock by itself, but not where it fears a deadlock, as while another process recovers."""
        deadline: float | None = None
        while True:
            try:
                return connection.execute(statement)
            except sqlite3.OperationalError as error:
                now = time.monotonic()
                deadline = deadline or now + self._busy_timeout_s
                if errors.primary(error) != sqlite3.SQLITE_BUSY or now >= deadline:
                    raise
            time.sleep(0.01)

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:  # the connection is past helping; what is uncommitted ends with it
            self.close()

    # ---------------------------------------------------------------------------------------- opening

    def _refuse_foreign(self) -> None:
        """Look without a trace: an immutable connection takes no lock and makes no -wal or -shm file.

        The mark of ours was written before the file became a WAL database, so it is never in the -wal file alone.
        """
        if not self._path.exists():
            return
        if not self._path.is_file():
            raise StoreUnusable(str(self._path), "it is not a regular file")
        if self._path.stat().st_size:
            with closing(self._open_connection("ro", "&immutable=1")) as connection:
                self._check_version(connection)

    def _check_version(self, connection: sqlite3.Connection) -> None:
        application = _number(connection, "PRAGMA application_id")
        version = _number(connection, "PRAGMA user_version")
        if application != APPLICATION_ID:
            whose = f"another application's (id {application:#x})" if application else "a database of something else"
            raise StoreUnusable(str(self._path), f"it is {whose}; choose another path")
        if version > VERSION:
            raise StoreUnusable(
                str(self._path), f"its schema is version {version}, this build knows {VERSION}; use a newer build"
            )
        if version < VERSION:
            raise StoreUnusable(str(self._path), f"its schema has version {version}, which never was one")

    def _create(self) -> None:
        missing = [folder for folder in self._path.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            _sync_names(folder.parent)
        try:
            # SQLite gives -wal and -shm the mode of the file they belong to.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
        _sync_names(self._path.parent)

    def _connect(self) -> sqlite3.Connection:
        connection = self._open_connection(self._mode)
        try:
            connection.execute("PRAGMA cell_size_check = ON")  # a damaged page is told, not followed
            if self._mode == "rw":
                connection.execute("PRAGMA synchronous = FULL")
                self._install(connection)
                self._use_wal(connection)
            else:
                self._check_version(connection)
            self._file = _identity(self._path)
        except BaseException:  # nobody else knows of this connection
            connection.close()
            raise
        self._connection = connection
        return connection

    def _open_connection(self, mode: str, options: str = "") -> sqlite3.Connection:
        uri = f"{self._path.as_uri()}?mode={mode}{options}"
        return sqlite3.connect(
            uri, uri=True, isolation_level=None, timeout=self._busy_timeout_s, check_same_thread=False
        )

    def _install(self, connection: sqlite3.Connection) -> None:
        """The schema, if the file is still empty: of several processes that start at once, one writes it."""
        self._begin(connection)
        try:
            if not (_number(connection, "PRAGMA user_version") or _number(connection, _COUNT_OBJECTS)):
                for statement in SCHEMA.read_text().split(";\n"):
                    connection.execute(statement)
            self._check_version(connection)
            connection.execute("COMMIT")
        except BaseException:  # as it was: empty, or somebody else's
            self._roll_back(connection)
            raise

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        journal = self._patiently(connection, "PRAGMA journal_mode = WAL").fetchone()[0]
        if (journal, _number(connection, "PRAGMA synchronous")) != ("wal", 2):
            raise StoreUnusable(
                str(self._path), f"its journal is {journal!r} where 'wal' with full synchronisation is needed"
            )


def _number(connection: sqlite3.Connection, question: str) -> int:
    value: int = connection.execute(question).fetchone()[0]
    return value


def _sync_names(folder: Path) -> None:
    """A file whose name a power cut takes away is no store."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:  # gone, or out of reach: connecting will say so
        return None
    return found.st_dev, found.st_ino

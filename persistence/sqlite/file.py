"""The database file: created for its owner alone, and checked before anything in it is changed."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from app.session.errors import NoStore, StoreUnusable, UnsupportedSchema
from app.session.health import Finding
from persistence import place
from persistence.sqlite import errors, journal

APPLICATION_ID = 0x62666864
VERSION = 1
SCHEMA = Path(__file__).with_name("schema.sql")

_COUNT_OBJECTS = "SELECT count(*) FROM sqlite_schema"

_preparing = threading.Lock()


def prepare(path: Path) -> None:
    """Create the file if there is none. Raises StoreUnusable for another's or a damaged one; OSError, sqlite3.Error."""
    with _preparing:  # closing a file drops the locks that SQLite holds on it for this whole process
        _refuse_foreign(path)
        journal.check(path)
        _create(path)
        # fp: sqlite.file_there


def missing(path: Path) -> NoStore | None:
    """What a reader is told where nothing was ever stored. An empty file is what `prepare` leaves when it is killed."""
    if place.is_empty(path) or (path.is_file() and path.stat().st_size == 0):
        return NoStore(str(path), "`beforehand run` makes one")
    return None


def examine(path: Path) -> Iterator[Finding]:
    """Who may use the file, the room for it, and whether it is one of ours."""
    yield from place.survey("file", path)
    if missing(path) is None:
        try:
            _refuse_foreign(path)
            version = f"SQLite {sqlite3.sqlite_version}, schema {VERSION}"
            yield Finding("schema", f"{version}; opening makes sure of a WAL journal that is synced in full")
        except StoreUnusable as error:
            yield Finding.fault("schema", error)
        except (sqlite3.Error, OSError) as error:
            yield Finding.fault("schema", StoreUnusable(str(path), errors.reason(error)))


def connect(path: Path, mode: str, busy_timeout_s: float, options: str = "") -> sqlite3.Connection:
    """A connection that begins no transaction by itself, in the mode "rw" or "ro": neither creates a file."""
    uri = f"{path.as_uri()}?mode={mode}{options}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=busy_timeout_s, check_same_thread=False)


def install(path: Path, connection: sqlite3.Connection) -> None:
    """The schema, if there is none yet, inside a transaction that holds the write lock. Raises StoreUnusable."""
    if not (number(connection, "PRAGMA user_version") or number(connection, _COUNT_OBJECTS)):
        for statement in SCHEMA.read_text().split(";\n"):
            connection.execute(statement)
    check_version(path, connection)


def check_version(path: Path, connection: sqlite3.Connection) -> None:
    """Raises StoreUnusable if this is the file of another application, or of another version of this one."""
    application = number(connection, "PRAGMA application_id")
    version = number(connection, "PRAGMA user_version")
    if application != APPLICATION_ID:
        whose = f"another application's (id {application:#x})" if application else "a database of something else"
        raise StoreUnusable(str(path), f"it is {whose}; choose another path")
    if version > VERSION:
        raise UnsupportedSchema(
            str(path), f"its schema is version {version}, this build knows {VERSION}; use a newer build"
        )
    if version < VERSION:
        raise StoreUnusable(str(path), f"its schema has version {version}, which never was one")


def number(connection: sqlite3.Connection, question: str) -> int:
    """The one integer that a statement answers."""
    value: int = connection.execute(question).fetchone()[0]
    return value


def identity(path: Path) -> tuple[int, int] | None:
    """What tells the file at a path from another that takes its place; None if there is none."""
    try:
        found = path.stat()
    except OSError:  # gone, or out of reach: connecting will say so
        return None
    return found.st_dev, found.st_ino


def _refuse_foreign(path: Path) -> None:
    """Look without a trace: an immutable connection takes no lock and makes no -wal or -shm file.

    The mark of ours was written before the file became a WAL database, so it is never in the -wal file alone.
    """
    if not path.exists():
        return
    if not path.is_file():
        raise StoreUnusable(str(path), "it is not a regular file")
    if path.stat().st_size:
        with closing(connect(path, "ro", 0, "&immutable=1")) as connection:
            try:
                check_version(path, connection)
            except sqlite3.DatabaseError as error:
                # Half written by another process that starts too, perhaps: it is looked at again under a lock.
                if errors.primary(error) != sqlite3.SQLITE_CORRUPT:
                    raise


def _create(path: Path) -> None:
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync_names(folder.parent)
    try:
        # SQLite gives -wal and -shm the mode of the file they belong to.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    _sync_names(path.parent)


def _sync_names(folder: Path) -> None:
    """A file whose name a power cut takes away is no store."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

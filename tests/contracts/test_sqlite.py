"""The SQLite store keeps the contract, in one process and in several."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from app.session.persistence import SessionPersistence
from persistence.contract import FaultPoint, LocalClaimsContract, PersistenceContract
from persistence.sqlite import SqlitePersistence
from tests.support.kit import Counted

FILE = "sessions.db"


@contextmanager
def refusing_the_third_event(path: Path) -> Iterator[None]:
    """While inside, the database refuses the third event of a batch that starts at 0, 5, ..."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "CREATE TRIGGER fault BEFORE INSERT ON events "
            "WHEN (NEW.place & 4294967295) % 5 = 2 "
            "BEGIN SELECT RAISE(ABORT, 'planted'); END"
        )
        try:
            yield
        finally:
            connection.execute("DROP TRIGGER fault")


@contextmanager
def full_disk() -> Iterator[None]:
    """While inside, no file of this process can grow: what a commit writes, which is where SQLite writes, fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestSqlite(Counted, PersistenceContract, LocalClaimsContract):
    kind = "sqlite"
    durable = True

    def make_store(self, folder: Path) -> SessionPersistence:
        self.path = folder / FILE
        return SqlitePersistence(self.path)

    @contextmanager
    def failing(self, store: SessionPersistence, point: FaultPoint) -> Iterator[None]:
        with full_disk() if point == "at the commit" else refusing_the_third_event(self.path):
            yield

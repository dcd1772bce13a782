"""The kinds of stores that conformance runs on, in one list: a kind added there is tested by every row that says so."""

from __future__ import annotations

import copy
import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from app.session.persistence import SessionPersistence
from persistence.jsonl import JsonlPersistence
from persistence.memory import MemoryPersistence
from persistence.postgres import PostgresPersistence
from persistence.sqlite import SqlitePersistence
from tests.support.postgres import apart, run_sql

_DSN = "sessions.dsn"


@dataclass(frozen=True, slots=True)
class Kind:
    """`at` makes persistence that sees what others made at that directory stored: what a new process would open.

    `knows_the_dead`: the claim of a process that was killed on this machine ends with it, whatever its lease says.
    """

    name: str
    is_durable: bool
    at: Callable[[Path], SessionPersistence]
    knows_the_dead: bool = False


@cache
def _memory(directory: Path) -> MemoryPersistence:
    return MemoryPersistence()  # lives as long as the test, whoever asks again


def _postgres(directory: Path) -> PostgresPersistence:
    """A schema of its own in the database that a file in the directory names."""
    return PostgresPersistence((directory / _DSN).read_text(), schema=_schema(directory))


def _schema(directory: Path) -> str:
    return f"place_{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}"


KINDS = [
    Kind("memory", False, _memory),
    Kind("sqlite", True, lambda directory: SqlitePersistence(directory / "sessions.db"), knows_the_dead=True),
    Kind("jsonl", True, lambda directory: JsonlPersistence(directory / "sessions"), knows_the_dead=True),
    Kind("postgres", True, _postgres),
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where sessions are stored for one test."""

    kind: Kind
    directory: Path

    def persistence(self) -> SessionPersistence:
        """Persistence over what is stored here, not yet opened; another one each time, as after a restart."""
        return self.kind.at(self.directory)

    @property
    def force(self) -> bool:
        """Whether it takes force to resume, before its lease has run out, a session whose process was killed here."""
        return not self.kind.knows_the_dead

    @property
    def words(self) -> tuple[str, str]:
        """What a child process needs to find it: see `place_of`."""
        return self.kind.name, str(self.directory)

    @property
    def database(self) -> tuple[str, str]:
        """Of a place on Postgres the DSN and the schema."""
        return (self.directory / _DSN).read_text(), _schema(self.directory)

    async def copy_to(self, other: Place) -> None:
        """Have another place of this kind hold what is stored here and nothing else, even while they are in use."""
        shutil.rmtree(other.directory)
        shutil.copytree(self.directory, other.directory)
        if self.kind.name == "memory":
            _memory(other.directory)._sessions = copy.deepcopy(_memory(self.directory)._sessions)
        elif self.kind.name == "postgres":
            (dsn, here), (_, there) = self.database, other.database
            for table in ("sessions", "events"):
                await run_sql(dsn, f"delete from {there}.{table}", f"insert into {there}.{table} table {here}.{table}")


def place_of(name: str, directory: str) -> Place:
    """The place that another process knows by these words."""
    return Place(next(kind for kind in KINDS if kind.name == name), Path(directory))


@pytest.fixture
def new_place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Kind], Place]]:
    """Each call makes an empty place for stores of a kind; what is in memory goes with the test."""

    def make(kind: Kind) -> Place:
        directory = tmp_path_factory.mktemp("place")
        if kind.name == "postgres":
            (directory / _DSN).write_text(request.getfixturevalue("postgres_places"))
            apart(_postgres(directory).migrate())
        return Place(kind, directory)

    yield make
    _memory.cache_clear()


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def place(request: pytest.FixtureRequest, new_place: Callable[[Kind], Place]) -> Place:
    """Each kind of store."""
    return new_place(request.param)


@pytest.fixture(params=[kind for kind in KINDS if kind.is_durable], ids=lambda kind: kind.name)
def durable_place(request: pytest.FixtureRequest, new_place: Callable[[Kind], Place]) -> Place:
    """Each kind of store that outlives a process."""
    return new_place(request.param)

"""The kinds of stores that conformance runs on, in one list: a kind added there is tested by every row that says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from app.session.persistence import SessionPersistence
from persistence.jsonl import JsonlPersistence
from persistence.memory import MemoryPersistence
from persistence.sqlite import SqlitePersistence


@dataclass(frozen=True, slots=True)
class Kind:
    """`at` makes persistence that sees what others made at that directory stored: what a new process would open."""

    name: str
    is_durable: bool
    at: Callable[[Path], SessionPersistence]


@cache
def _memory(directory: Path) -> MemoryPersistence:
    return MemoryPersistence()  # lives as long as the process, whoever asks again


KINDS = [
    Kind("memory", False, _memory),
    Kind("sqlite", True, lambda directory: SqlitePersistence(directory / "sessions.db")),
    Kind("jsonl", True, lambda directory: JsonlPersistence(directory / "sessions")),
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
    def words(self) -> tuple[str, str]:
        """What a child process needs to find it: see `place_of`."""
        return self.kind.name, str(self.directory)


def place_of(name: str, directory: str) -> Place:
    """The place that another process knows by these words."""
    return Place(next(kind for kind in KINDS if kind.name == name), Path(directory))


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each kind of store."""
    return Place(request.param, tmp_path)


@pytest.fixture(params=[kind for kind in KINDS if kind.is_durable], ids=lambda kind: kind.name)
def durable_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each kind of store that outlives a process."""
    return Place(request.param, tmp_path)

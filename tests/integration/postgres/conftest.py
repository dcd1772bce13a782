"""PGB-01: what asks for a database here runs directly and through a transaction pooler, unless it says DIRECTLY."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from persistence.postgres import PostgresPersistence
from tests.support.pg_pair import pair
from tests.support.pgbouncer import Pooled, pgbouncer

__all__ = ["pair", "pgbouncer"]


@pytest.fixture(params=["direct", "pooled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """What a DSN has to become. Through the pooler stores cache no statements, unless they are told to."""
    if request.param == "direct":
        return str
    defaults: Any = PostgresPersistence.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "statement_cache_size", 0)
    pooler = request.getfixturevalue("pgbouncer")
    return lambda dsn: Pooled.make(pooler, dsn)


@pytest.fixture
def postgres_dsn(way: Callable[[str], str], postgres_dsn: str) -> str:
    """A migrated database for this test alone."""
    return way(postgres_dsn)


@pytest.fixture
def empty_postgres_dsn(way: Callable[[str], str], empty_postgres_dsn: str) -> str:
    """An empty database for this test alone."""
    return way(empty_postgres_dsn)

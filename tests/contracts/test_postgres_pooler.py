"""The Postgres store keeps the contract through a pooler, where each transaction may meet another server process."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.session.errors import StoreUnusable
from app.session.persistence import SessionPersistence
from persistence.postgres import PostgresPersistence
from persistence.postgres.dsn import Dsn
from tests.contracts.test_postgres import PostgresContract
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import Server

__all__ = ["pgbouncer"]


class TestPostgresThroughAPooler(PostgresContract):
    """PGB-01 for the contract; the other rows that name Postgres run in tests/integration/postgres, both ways."""

    @pytest.fixture(autouse=True)
    def pooled(self, pgbouncer: Server, postgres_dsn: str) -> None:
        self.through = pgbouncer.to(Dsn.parse(postgres_dsn).database or "")

    def make_store(self, folder: Path) -> SessionPersistence:
        return PostgresPersistence(self.through, statement_cache_size=0, pool_size=3)


async def test_prepared_statements_through_a_pooler_are_refused_at_the_start(
    pgbouncer: Server, postgres_dsn: str
) -> None:
    """PGB-02."""
    with pytest.raises(StoreUnusable) as raised:
        await PostgresPersistence(pgbouncer.to(Dsn.parse(postgres_dsn).database or "")).open()
    assert raised.value.reason == "a pooler stands in between; set persistence.statement_cache_size to 0"

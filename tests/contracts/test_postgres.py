"""The Postgres store keeps the contract, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.session.persistence import SessionPersistence
from persistence.contract import FaultPoint, PersistenceContract
from persistence.postgres import PostgresPersistence
from tests.support.kit import Counted
from tests.support.postgres import run_sql

PLANT = """
create function beforehand.fault() returns trigger language plpgsql as $$
begin
    raise 'planted';
end $$
"""
AT_THE_THIRD_EVENT = """
create trigger fault before insert on beforehand.events
for each row when (new.seq % 5 = 2) execute function beforehand.fault()
"""
AT_THE_COMMIT = """
create constraint trigger fault after insert on beforehand.events deferrable initially deferred
for each row execute function beforehand.fault()
"""


class PostgresContract(Counted, PersistenceContract):
    """What the store says about itself, however it is reached."""

    kind = "postgres"
    durable = True

    @pytest.fixture(autouse=True)
    def database(self, postgres_dsn: str) -> None:
        self.dsn = postgres_dsn

    def make_store(self, folder: Path) -> SessionPersistence:
        return PostgresPersistence(self.dsn, pool_size=3)

    @contextmanager
    def failing(self, store: SessionPersistence, point: FaultPoint) -> Iterator[None]:
        """The server refuses the third event of a batch that starts at 0, 5, ..., or every commit with events."""
        with ThreadPoolExecutor(1) as thread:
            trigger = AT_THE_COMMIT if point == "at the commit" else AT_THE_THIRD_EVENT
            thread.submit(asyncio.run, run_sql(self.dsn, PLANT, trigger)).result()
            try:
                yield
            finally:
                thread.submit(asyncio.run, run_sql(self.dsn, "drop function beforehand.fault() cascade")).result()


class TestPostgres(PostgresContract):
    """Reached directly."""

"""A server, or the pooler before it, that is killed while sessions write: what was acknowledged is there afterwards."""

from __future__ import annotations

import asyncio

import pytest

from persistence.postgres import PostgresPersistence
from tests.integration.postgres.load import SESSIONS, Load
from tests.support.counting import amount
from tests.support.pgbouncer import Pooler
from tests.support.postgres_local import LocalServer

RESTARTS = amount("RESTARTS", 3)
POOLER_KILLS = amount("POOLER_KILLS", 3)
TOGETHER = 25
"""Kills that the same sessions live through."""


@pytest.mark.timeout(60 + 10 * RESTARTS)
async def test_a_server_that_is_killed_keeps_all_that_it_acknowledged() -> None:
    """All of it at once, or its first process alone, and the others end in the middle of their work."""
    with LocalServer() as server:
        store = PostgresPersistence(server.dsn(), migrate_on_start=True, pool_timeout_ms=60_000)
        await store.open()
        load = Load(store)
        for begun in range(0, RESTARTS, TOGETHER):
            async with load:
                for _ in range(begun, min(begun + TOGETHER, RESTARTS)):
                    await load.until(load.chance.randint(1, 400))
                    await asyncio.to_thread(server.kill, alone=load.chance.random() < 0.5)
                    await asyncio.to_thread(server.start)
                await load.until(2 * SESSIONS)
            await load.check(server.dsn())
        await store.close()
    load.conclude("server killed and restarted, postgres", RESTARTS)


@pytest.mark.timeout(60 + 10 * POOLER_KILLS)
async def test_what_a_pooler_that_is_killed_took_with_it_is_asked_for_again() -> None:
    """The server is well, and may have done what it was asked, or do it yet."""
    with LocalServer() as server, Pooler(server.dsn()) as pooler:
        through = pooler.server.dsn
        store = PostgresPersistence(through, migrate_on_start=True, statement_cache_size=0, pool_timeout_ms=60_000)
        await store.open()
        load = Load(store)
        for begun in range(0, POOLER_KILLS, TOGETHER):
            async with load:
                for _ in range(begun, min(begun + TOGETHER, POOLER_KILLS)):
                    await load.until(load.chance.randint(1, 400))
                    await asyncio.to_thread(pooler.kill)
                    await asyncio.to_thread(pooler.start)
                await load.until(2 * SESSIONS)
            await load.check(server.dsn())
        await store.close()
    load.conclude("pooler killed and restarted, postgres", POOLER_KILLS)

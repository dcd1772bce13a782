"""A synchronous pair whose primary is killed while sessions write, again and again, the two taking turns."""

from __future__ import annotations

import asyncio
import signal

import pytest

from persistence.postgres import PostgresPersistence
from tests.integration.postgres.load import SESSIONS, Load
from tests.support.counting import amount
from tests.support.pg_pair import Pair, attached, confirm_alone

PROMOTIONS = amount("PROMOTIONS", 1)
TOGETHER = 10
"""Promotions that the same sessions live through."""
TRAP = 3
"""In one of so many rounds the standby is away at first: commits are done for the primary alone, and go with it."""


@pytest.mark.timeout(60 + 20 * PROMOTIONS)
async def test_everything_acknowledged_survives_a_primary_that_is_killed_under_load(pair: Pair) -> None:
    """REP-01: each session asks until it is answered, and none loses or repeats an event."""
    primary, standby = pair.primary, pair.standby
    store = PostgresPersistence(pair.dsn, migrate_on_start=True, standby="on", pool_timeout_ms=60_000)
    await store.open()
    load = Load(store)
    for begun in range(0, PROMOTIONS, TOGETHER):
        async with load:
            for n in range(begun, min(begun + TOGETHER, PROMOTIONS)):
                await load.until(load.chance.randint(1, 400))
                if n % TRAP == TRAP - 1:
                    await asyncio.to_thread(standby.stop, signal.SIGQUIT)
                    left = load.chance.randint(1, SESSIONS)
                    while left > 0 and not load.wrong:
                        left -= await confirm_alone(primary)
                    await asyncio.to_thread(primary.kill)
                    await asyncio.to_thread(standby.start)
                else:
                    await asyncio.to_thread(primary.kill)
                await asyncio.to_thread(standby.promote)
                await asyncio.to_thread(primary.rejoin, standby)
                primary, standby = standby, primary
                await attached(primary)
            await load.until(2 * SESSIONS)
        await load.check(primary.dsn())
    await store.close()
    load.conclude("standby promoted, postgres", PROMOTIONS)

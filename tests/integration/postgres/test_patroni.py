"""Three servers kept by Patroni, whose leader is lost while sessions write: another one is promoted by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from persistence.postgres import PostgresPersistence
from tests.integration.postgres.load import SESSIONS, Load
from tests.support.counting import SEED, amount
from tests.support.patroni import Cluster, Node
from tests.support.postgres_local import NotAvailable

FAILOVERS = amount("FAILOVERS", 1)
PARTITIONS = amount("PARTITIONS", 0)
FAULTS = (("there", "back"), ("there",), ("back",), "Patroni stands still", "all stands still")


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    try:
        made = Cluster()
    except NotAvailable as reason:
        pytest.skip(f"not run: {reason}")
    async with made as cluster:
        yield cluster


async def kill(cluster: Cluster, leader: Node, load: Load, n: int) -> None:
    """Patroni and the server, which the others notice when the lock runs out, or the server alone, in turns."""
    await asyncio.to_thread(leader.kill, server_alone=n % 2 == 1)
    await cluster.until_another(leader)
    await load.until(2 * SESSIONS)
    if n % 2 == 0:
        await leader.start()


async def cut_off(cluster: Cluster, leader: Node, load: Load, n: int) -> None:
    """From etcd and the others, but not from the sessions; or it stands still for longer than its lock lasts."""
    fault = FAULTS[n % len(FAULTS)]
    if isinstance(fault, str):
        leader.freeze(patroni_alone=fault == "Patroni stands still")
    else:
        for way in leader.ways.values():
            way.cut(*fault)
    try:
        await cluster.until_another(leader)
        await load.until(2 * SESSIONS)
    finally:
        leader.thaw()
        for way in leader.ways.values():
            way.heal()


WAYS = {"automatic failover": (FAILOVERS, kill), "partitions": (PARTITIONS, cut_off)}


@pytest.mark.timeout(180 + 180 * (FAILOVERS + PARTITIONS))
@pytest.mark.parametrize("name", [name for name, (rounds, _) in WAYS.items() if rounds])
async def test_what_was_acknowledged_is_with_whom_patroni_promotes(cluster: Cluster, name: str) -> None:
    """REP-01, REP-05: each session asks until it is answered; none loses an event, and there are no two histories."""
    rounds, lose = WAYS[name]
    store = PostgresPersistence(cluster.dsn, migrate_on_start=True, standby="on", pool_timeout_ms=90_000)
    await store.open()
    load = Load(store)
    for n in range(SEED, SEED + rounds):
        async with load:
            await load.until(load.chance.randint(1, 200))
            await lose(cluster, await cluster.leader(), load, n)
            await load.until(2 * SESSIONS)
            leader = await cluster.until_whole()
        await load.check(f"postgresql://postgres@127.0.0.1:{leader.port}/postgres")
    await store.close()
    load.conclude(f"{name}, Patroni", rounds)

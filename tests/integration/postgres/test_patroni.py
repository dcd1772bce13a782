"""Three servers kept by Patroni, whose leader is lost while sessions write: another one is promoted by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from persistence.postgres import PostgresPersistence
from tests.integration.postgres.load import SESSIONS, Load
from tests.support.counting import amount
from tests.support.patroni import Cluster, Node
from tests.support.postgres_local import NotAvailable

FAILOVERS = amount("FAILOVERS", 1)
PARTITIONS = amount("PARTITIONS", 0)
DIRECTIONS = (("there", "back"), ("there",), ("back",))


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    try:
        made = Cluster()
    except NotAvailable as reason:
        pytest.skip(f"not run: {reason}")
    async with made as cluster:
        yield cluster


async def kill(cluster: Cluster, leader: Node, load: Load) -> None:
    """The server alone, which its Patroni sees, or both, which the others notice when its lock runs out."""
    server_alone = load.chance.random() < 0.5
    await asyncio.to_thread(leader.kill, server_alone=server_alone)
    await load.until(2 * SESSIONS)
    if not server_alone:
        await leader.start()


async def cut_off(cluster: Cluster, leader: Node, load: Load) -> None:
    """From etcd and the others, but not from the sessions; or it stands still for longer than its lock lasts."""
    if load.chance.random() < 0.7:
        for way in leader.ways.values():
            way.cut(*load.chance.choice(DIRECTIONS))
    else:
        os.kill(leader.pid, signal.SIGSTOP)

    def look() -> Node | None:
        return next((node for node in cluster.nodes if node is not leader and node.leads()), None)

    try:
        await cluster.until(look, "nobody else leads")
        await load.until(SESSIONS)
    finally:
        os.kill(leader.pid, signal.SIGCONT)
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
    for _ in range(rounds):
        async with load:
            await load.until(load.chance.randint(1, 200))
            await lose(cluster, await cluster.leader(), load)
            await load.until(2 * SESSIONS)
            leader = await cluster.until_whole()
        await load.check(f"postgresql://postgres@127.0.0.1:{leader.port}/postgres")
    await store.close()
    load.conclude(f"{name}, Patroni", rounds)

"""Times are milliseconds since the epoch and leases are the server's: no zone and no clock change matters."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from app.llm.scripted import say
from persistence.postgres import PostgresPersistence
from tests.support.house import Clock, House
from tests.support.postgres import run_sql

CHANGE_MS = 1_793_512_800_000
"""New York's clocks go back at this moment: 2026-11-01 06:00 UTC."""


@pytest.fixture
def _in_kathmandu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_in_kathmandu")
async def test_zones_and_a_clock_change_alter_neither_times_nor_order_nor_leases(postgres_dsn: str) -> None:
    """TIM-02: a process in Kathmandu, a database in New York, sessions on both sides of the hour that comes twice."""
    (name,) = (await run_sql(postgres_dsn, "select current_database()"))[0]
    await run_sql(postgres_dsn, f"alter database {name} set timezone = 'America/New_York'")
    clock = Clock(CHANGE_MS - 1_800_000)
    house = House([say("one"), say("two"), say("three")], persistence=PostgresPersistence(postgres_dsn), clock=clock)
    made = []
    async with house.opened():
        for session_id in ("before", "at", "after"):
            agent = await house.agents.create(session_id)
            await agent.wait(agent.send("?"))
            made.append((session_id, clock.now_ms, {event.time for event in agent.session.events}))
            clock.now_ms += 1_800_000
        rows = await house.sessions.list()
        assert [(row.session_id, row.created_at) for row in rows] == [(name, at) for name, at, _ in reversed(made)]
        for session_id, at, times in made:
            stored = await house.sessions.read_from(session_id, 0)
            assert {event.time for event in stored} == times == {at}
        assert all(0 < row.holder.lease_left_s <= 30 for row in rows)
        await house.agents.close()
        assert all(row.holder.owner is None for row in await house.sessions.list())

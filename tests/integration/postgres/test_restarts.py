"""A server that restarts, in order or as after a crash: it is waited for within the limit, or nothing more is done."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from app.llm.scripted import call, gate, say
from app.session.errors import PersistenceUnavailable, StoreUnusable
from app.session.ownership import Owner
from app.session.session import Session
from app.tools.schema import tool
from persistence.contract import Writer
from persistence.contract.samples import ALREADY_OVER
from persistence.postgres import PostgresPersistence
from tests.support.checkpoints import pend
from tests.support.counting import count
from tests.support.house import House, shorten, types
from tests.support.interrupted import Open, append_open_turn
from tests.support.postgres import run_sql
from tests.support.postgres_local import LocalServer
from tests.support.watching import results

STATES = "select state from pg_stat_activity where application_name = 'beforehand'"
CLOSERS = ["tool/result", "tool/result", "step/end", "turn/end{interrupted}"]
WAYS = (signal.SIGINT, signal.SIGQUIT)
"""To stop in order, and as after a crash."""


async def test_a_server_that_restarts_is_waited_for_within_the_limit_and_no_longer() -> None:
    """PGB-03: postgres restarted, and one that does not come back."""
    with LocalServer() as server:
        store = PostgresPersistence(server.dsn(), pool_timeout_ms=20_000, migrate_on_start=True)
        await store.open()
        writer = Writer.new(store)
        await writer.write(2)
        for how in (signal.SIGINT, signal.SIGQUIT):
            await asyncio.to_thread(server.stop, how)
            writing = asyncio.create_task(writer.write(2))
            await asyncio.to_thread(server.start)
            await writing
            await writer.check()
        await store.close()
        store = PostgresPersistence(server.dsn(), pool_timeout_ms=400)
        await store.open()
        writer.store = store
        await writer.write(1)
        await asyncio.to_thread(server.stop)
        began = time.monotonic()
        batch = writer.batch(1)
        with pytest.raises(PersistenceUnavailable):
            await writer.send(batch)
        assert time.monotonic() - began < 5
        with pytest.raises(StoreUnusable):
            await PostgresPersistence(server.dsn()).open()
        await asyncio.to_thread(server.start)
        await writer.send(batch)
        await writer.check()
        await store.close()


@pytest.mark.parametrize("how", WAYS)
async def test_a_turn_goes_on_over_a_server_that_restarts_while_the_model_thinks(how: signal.Signals) -> None:
    """PGB-03: before each answer."""
    with LocalServer() as server:

        async def restart() -> None:
            await asyncio.to_thread(server.stop, how)
            await asyncio.to_thread(server.start)

        @tool
        def act() -> str:
            """Do nothing."""
            return "done"

        store = PostgresPersistence(server.dsn(), migrate_on_start=True)
        house = House([[gate(restart), call("act", {}, id="c1")], [gate(restart), say("well")]], [act], store)
        async with house.agent() as agent:
            outcome = await agent.wait(agent.send("go"))
            assert (outcome.reason, outcome.durable) == ("completed", True)
            assert (await store.read("s")).events == agent.session.events


async def test_a_turn_ends_with_nothing_dispatched_when_the_server_stays_away() -> None:
    """PGB-03: no tool is started and no further request made; the log is stored when the server is back."""
    with LocalServer() as server:
        acted: list[str] = []

        async def go_away() -> None:
            await asyncio.to_thread(server.stop, signal.SIGQUIT)

        @tool
        def act() -> str:
            """Leave a trace."""
            acted.append("acted")
            return "done"

        store = PostgresPersistence(server.dsn(), migrate_on_start=True, pool_timeout_ms=200)
        house = House([[gate(go_away), call("act", {}, id="c1")], say("never asked for")], [act], store)
        async with house.agent() as agent:
            outcome = await agent.wait(agent.send("go"))
            assert (outcome.reason, outcome.durable) == ("error", False)
            assert (acted, len(house.adapter.requests)) == ([], 1)
            assert results(agent.session) == [("c1", "CHECKPOINT_FAILED")]
            assert types(agent.session)[-1] == "turn/end{error CHECKPOINT_FAILED}"
            await asyncio.to_thread(server.start)
            await house.sessions.flush(agent.session)
            assert (await store.read("s")).events == agent.session.events


async def test_a_server_that_restarts_under_250_resumes_loses_none_and_closes_none_twice() -> None:
    """POOL-02: it crashes twice meanwhile; whoever was told of it asks again."""
    with LocalServer() as server:
        dsn = server.dsn()
        gone = House(
            persistence=PostgresPersistence(dsn, migrate_on_start=True), owner=Owner("gone", lease_s=ALREADY_OVER)
        )
        await gone.persistence.open()
        left = [await gone.sessions.create(f"s{n}") for n in range(250)]
        for session in left:
            append_open_turn(session, Open("c1"), Open("c2", effects=None))
        await asyncio.gather(*(gone.sessions.flush(session) for session in left))
        await gone.persistence.close()

        house = House(persistence=PostgresPersistence(dsn, pool_timeout_ms=20_000), owner=Owner("new"))
        failed: set[str] = set()

        async def resume(session_id: str) -> Session:
            while True:
                try:
                    return await house.sessions.resume(session_id)
                except PersistenceUnavailable:
                    failed.add(session_id)

        async with house.opened():
            resuming = [asyncio.create_task(resume(session.id)) for session in left]
            for enough in (50, 150):
                while len(house.sessions.live) < enough:
                    await asyncio.wait(resuming, return_when=asyncio.FIRST_COMPLETED, timeout=0.001)
                await asyncio.to_thread(server.stop, signal.SIGQUIT)
                assert len(house.sessions.live) < 250
                await asyncio.to_thread(server.start)
            resumed = await asyncio.gather(*resuming)
            assert failed, "it fell between two statements of every connection"
            wrong = []
            for before, session in zip(left, resumed, strict=True):
                events = (await house.persistence.read(session.id)).events
                kept, added = events[: len(before)], shorten(events[len(before) :])
                if (events, kept, added) != (session.events, before.events, CLOSERS):
                    wrong.append((session, len(events), added))
            acknowledged = sum(session.durable for session in resumed)
            count(
                "server restarted under 250 resumes, postgres", runs=2, acknowledged=acknowledged, violations=len(wrong)
            )
            assert wrong == []
            for session in resumed:
                pend(session)
            await asyncio.gather(*(house.sessions.flush(session) for session in resumed))
            states = [state for (state,) in await run_sql(dsn, STATES)]
            assert set(states) == {"idle"}
            assert len(states) <= 2 + 8

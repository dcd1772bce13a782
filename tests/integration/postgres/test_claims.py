"""Who writes: of two claims the newer one, by the clock of the database; a reader beside them sees whole steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from app.llm.scripted import gate
from app.session.errors import SessionFenced, SessionHeld, Stored
from app.session.ownership import Owner
from app.session.record import SessionEvent
from app.session.store import SessionStore
from persistence.contract import Writer
from persistence.contract.base import contents
from persistence.contract.samples import ALREADY_OVER, owner
from persistence.postgres import PostgresPersistence
from tests.support.checkpoints import pend
from tests.support.house import House, types
from tests.support.postgres import run_sql


@pytest_asyncio.fixture
async def store(postgres_dsn: str) -> AsyncIterator[PostgresPersistence]:
    store = PostgresPersistence(postgres_dsn)
    await store.open()
    yield store
    await store.close()


async def test_of_two_epochs_that_flush_the_older_one_is_fenced_before_any_row(store: PostgresPersistence) -> None:
    """PG-01."""
    old = Writer.new(store, "s")
    await old.write(2)
    for _ in range(3):
        old.epoch, _ = await store.acquire("s", owner(), force=True)
    new = Writer(store, old.header, old.epoch, old.head, list(old.events))
    new.epoch, _ = await store.acquire("s", owner("berta"), force=True)
    assert (old.epoch.number, new.epoch.number) == (4, 5)
    answers = await asyncio.gather(old.write(3), new.write(2), return_exceptions=True)
    assert isinstance(answers[0], SessionFenced)
    assert answers[0].stored in (Stored(5, 2, old.head), Stored(5, 4, new.head))
    assert not isinstance(answers[1], BaseException)
    assert (await store.read("s")).events == tuple(new.events)


async def test_a_running_lease_keeps_others_from_resuming_but_not_from_looking(store: PostgresPersistence) -> None:
    """PG-07."""
    anna, berta = SessionStore(store, Owner("anna")), SessionStore(store, Owner("berta"))
    session = await anna.create("s")
    pend(session, "a")
    await anna.flush(session)
    before = await contents(store)
    with pytest.raises(SessionHeld) as raised:
        await berta.resume("s")
    assert raised.value.owner == "anna"
    found = await berta.inspect("s")
    assert tuple(found.events) == session.events
    assert await contents(store) == before
    await anna.release(session)


async def test_the_epoch_and_the_closers_of_a_resume_appear_together(postgres_dsn: str) -> None:
    """PG-08."""
    reader = PostgresPersistence(postgres_dsn)
    await reader.open()
    for n in range(10):
        await watch_a_resume(postgres_dsn, reader, f"s{n}")
    await reader.close()


async def watch_a_resume(dsn: str, reader: PostgresPersistence, session_id: str) -> None:
    """Leave a session with a turn open, have it resumed, and see by a reader what of that appears when."""
    asked = asyncio.Event()

    async def wait_for_ever() -> None:
        asked.set()
        await asyncio.Event().wait()

    owner_whose_lease_is_over = Owner("anna", lease_s=ALREADY_OVER)
    store = PostgresPersistence(dsn)
    house = House([[gate(wait_for_ever)]], (), store, owner_whose_lease_is_over, lease_margin_s=-10)
    await store.open()
    agent = await house.agents.create(session_id)
    agent.send("go")
    await asked.wait()
    before = len((await reader.read(session_id)).events)
    seen: set[tuple[int, tuple[str, ...]]] = set()
    done = asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            log = await reader.read(session_id)
            seen.add((log.holder.epoch, tuple(event.type for event in log.events[before:])))

    watching = asyncio.create_task(watch())
    berta = SessionStore(reader, Owner("berta"))
    session = await berta.resume(session_id)
    await reader.read(session_id)
    done.set()
    await watching
    assert seen <= {(1, ()), (2, ("step/end", "turn/end"))}
    assert types(session)[-2:] == ["step/end", "turn/end{interrupted}"]
    await berta.release(session)
    await agent.close()
    await store.close()


async def test_a_follower_of_a_busy_writer_sees_each_event_once_and_in_order(postgres_dsn: str) -> None:
    """PG-16."""
    writing, following = PostgresPersistence(postgres_dsn), PostgresPersistence(postgres_dsn)
    await writing.open()
    await following.open()
    writer = Writer.new(writing, "s")
    await writer.write(1)
    followed: list[SessionEvent] = []

    async def follow() -> None:
        while len(followed) < 1001:
            followed.extend(await following.read_from("s", len(followed), 7))

    task = asyncio.create_task(follow())
    for _ in range(250):
        await writer.write(4)
    await task
    assert followed == writer.events
    await writing.close()
    await following.close()


async def test_only_the_clock_of_the_database_counts_for_leases(postgres_dsn: str) -> None:
    """OWN-10: of the store: its rows hold the server's time, whatever this process thinks it is."""
    store = PostgresPersistence(postgres_dsn)
    await store.open()
    writer = Writer.new(store, "s", lease_s=100, created_at=5)
    await writer.write(1)
    found = await run_sql(postgres_dsn, "select lease_until - clock_timestamp() from beforehand.sessions")
    assert 90 < found[0][0].total_seconds() <= 100
    await store.close()

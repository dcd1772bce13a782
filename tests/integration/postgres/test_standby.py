"""A synchronous standby that does not answer: what only the primary holds is seen by all and promised to nobody."""

from __future__ import annotations

import asyncio

import pytest

from app.session.errors import PersistenceUnavailable, StoreUnusable
from persistence.contract import Writer
from persistence.postgres import PostgresPersistence
from tests.support.postgres import connect, run_sql
from tests.support.postgres_local import LocalServer

WAITING = "select pid from pg_stat_activity where wait_event = 'SyncRep'"


async def test_an_append_that_no_standby_confirmed_stays_unknown_until_one_does() -> None:
    with LocalServer() as server:
        dsn = server.dsn()
        store = PostgresPersistence(dsn, statement_timeout_ms=200, connect_timeout_ms=500, migrate_on_start=True)
        await store.open()
        writer = Writer.new(store)
        await writer.write(2)
        demand = ("alter system set synchronous_standby_names = 'ANY 1 (nobody)'", "select pg_reload_conf()")
        await run_sql(dsn, *demand)
        looking = await connect(dsn)
        while not await looking.fetchval("select current_setting('synchronous_standby_names') <> ''"):
            pass
        batch = writer.batch(3)
        for _ in range(2):  # the second time its rows are found, and that they are is no promise either
            with pytest.raises(PersistenceUnavailable) as raised:
                await writer.send(batch)
            assert raised.value.reason == "it did not answer in time (TimeoutError)"
        assert len((await store.read(writer.id)).events) == 5
        sending = asyncio.create_task(writer.send(batch))
        while not (waiting := await looking.fetchval(WAITING)):
            pass
        await looking.fetchval("select pg_cancel_backend($1)", waiting)
        with pytest.raises(PersistenceUnavailable) as warned:
            await sending
        assert "warning" in warned.value.reason
        await run_sql(dsn, "alter system reset synchronous_standby_names", "select pg_reload_conf()")
        await writer.send(batch)
        await writer.check()
        await looking.close()
        await store.close()


async def test_a_standby_that_was_asked_for_has_to_be_there(postgres_dsn: str) -> None:
    with pytest.raises(StoreUnusable) as raised:
        await PostgresPersistence(postgres_dsn, standby="on").open()
    assert raised.value.reason == "no standby has to confirm a commit; set synchronous_standby_names = 'ANY 1 (...)'"
    with pytest.raises(StoreUnusable) as weak:
        await PostgresPersistence(postgres_dsn, standby="remote_apply").open()
    assert "has to be remote_apply" in weak.value.reason

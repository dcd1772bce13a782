"""The schema can be split by session: nothing of the store changes when its tables are hash-partitioned."""

from __future__ import annotations

import asyncio

import pytest

from app.session.errors import SessionDeleted
from persistence.contract import Writer
from persistence.contract.samples import owner
from persistence.postgres import PostgresPersistence
from tests.support.postgres import run_sql

PARTITIONED = (
    "alter table beforehand.sessions rename to sessions_whole",
    "alter table beforehand.events rename to events_whole",
    "create table beforehand.sessions (like beforehand.sessions_whole including all) partition by hash (id)",
    "create table beforehand.events (like beforehand.events_whole including all) partition by hash (session_id)",
    "drop table beforehand.sessions_whole, beforehand.events_whole",
    """do $$ begin for n in 0..3 loop
        execute format('create table beforehand.sessions_%s partition of beforehand.sessions
            for values with (modulus 4, remainder %s)', n, n);
        execute format('create table beforehand.events_%s partition of beforehand.events
            for values with (modulus 4, remainder %s)', n, n);
    end loop; end $$""",
)


async def test_sessions_live_in_hash_partitions_as_they_do_in_one_table(postgres_dsn: str) -> None:
    await run_sql(postgres_dsn, *PARTITIONED)
    store = PostgresPersistence(postgres_dsn)
    await store.open()
    writers = [Writer.new(store, f"s{n:02}") for n in range(40)]
    for size in (1, 3, 2):
        await asyncio.gather(*(writer.write(size) for writer in writers))
    for writer in writers[:10]:
        writer.epoch, _ = await store.acquire(writer.id, owner("berta"), force=True)
        await writer.write(1)
    for writer in writers:
        await writer.check()
    await store.delete("s00")
    with pytest.raises(SessionDeleted):
        await store.read("s00")
    assert len(await store.list(100)) == 39
    used = await run_sql(postgres_dsn, "select distinct tableoid::regclass::text from beforehand.events")
    assert len(used) == 4
    await store.close()

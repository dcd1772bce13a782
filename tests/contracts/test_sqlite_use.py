"""The SQLite store in use: patience with other processes, the event loop kept free, and files that change under it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.session.errors import PersistenceUnavailable, SequenceConflict, Stored, StoreUnusable
from persistence.contract import Writer
from persistence.sqlite import SqlitePersistence, reading


def run_sql(path: Path, *statements: str) -> list[tuple[object, ...]]:
    """Run statements as another program would; the rows of the last one."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return [connection.execute(statement).fetchall() for statement in statements][-1]


async def test_a_call_before_open_or_after_close_is_told_that_the_store_is_not_open(tmp_path: Path) -> None:
    store = SqlitePersistence(tmp_path / "s.db")
    writer = Writer.new(store, "s")
    for _ in range(2):
        with pytest.raises(PersistenceUnavailable) as raised:
            await writer.write()
        assert (raised.value.session_id, raised.value.reason) == ("s", "the store is not open")
        await store.open()
        await store.close()


async def test_another_process_that_keeps_the_lock_costs_patience_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqlitePersistence(path, busy_timeout_s=0.05)
    await store.open()
    writer = Writer.new(store)
    await writer.write(2)
    batch = writer.batch(2)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(PersistenceUnavailable) as raised:
            await writer.send(batch)
        assert raised.value.reason == "another process keeps the database locked (SQLITE_BUSY)"
        await writer.check()
        with pytest.raises(StoreUnusable) as refused:
            await SqlitePersistence(path, busy_timeout_s=0.05).open()
        assert "locked" in str(refused.value)
        other.execute("ROLLBACK")
    await writer.send(batch)
    await writer.check()
    await store.close()


async def test_the_event_loop_goes_on_while_a_write_waits(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqlitePersistence(path)
    await store.open()
    writer = Writer.new(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(writer.write(2))
        for _ in range(100):
            await asyncio.sleep(0.001)
            assert await store.list(10) == []
        closing_it = asyncio.ensure_future(store.close())
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert not writing.done()
        assert not closing_it.done()
        other.execute("ROLLBACK")
    await closing_it
    await writing
    await store.open()
    await writer.check()
    await store.close()


async def test_a_long_read_holds_up_no_checkpoint(tmp_path: Path) -> None:
    store = SqlitePersistence(tmp_path / "s.db")
    await store.open()
    long, short = Writer.new(store), Writer.new(store)
    for _ in range(4):
        await long.write(5000)
    await short.write()
    reading = [asyncio.ensure_future(store.read(long.id)) for _ in range(5)]
    written = 0
    while not reading[0].done():
        await short.write()
        written += 1
    assert written > 0
    assert [len(log.events) for log in await asyncio.gather(*reading)] == [20_000] * 5
    await short.check()
    await store.close()


async def test_a_restored_backup_is_seen_before_anything_is_written_into_the_lost_file(tmp_path: Path) -> None:
    """DIG-03: what the store says; the live session makes a StoreRegressed of it."""
    path, copy = tmp_path / "s.db", tmp_path / "copy.db"
    store = SqlitePersistence(path)
    await store.open()
    writer = Writer.new(store)
    await writer.write(6)
    old = Stored(1, 6, writer.head)
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(copy)) as target:
        connection.backup(target)
    await writer.write(4)
    for name in ("s.db-wal", "s.db-shm"):
        (tmp_path / name).unlink()
    copy.replace(path)
    for _ in range(2):
        with pytest.raises(SequenceConflict) as raised:
            await writer.write(1)
        assert raised.value.stored == old
        assert len((await store.read(writer.id)).events) == 6
    await store.close()
    assert run_sql(path, "PRAGMA integrity_check", "SELECT next_seq FROM sessions") == [(6,)]


async def test_a_file_that_was_taken_away_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqlitePersistence(path)
    await store.open()
    writer = Writer.new(store)
    await writer.write(2)
    for name in ("s.db", "s.db-wal", "s.db-shm"):
        (tmp_path / name).rename(tmp_path / f"{name}.away")
    for _ in range(2):
        with pytest.raises(PersistenceUnavailable) as raised:
            await writer.write(1)
        assert "cannot be opened" in raised.value.reason
        with pytest.raises(PersistenceUnavailable):
            await store.read(writer.id)
    assert not path.exists()
    for name in ("s.db", "s.db-wal", "s.db-shm"):
        (tmp_path / f"{name}.away").rename(tmp_path / name)
    await writer.write(1)
    await writer.check()
    await store.close()


def test_two_event_loops_one_after_the_other_use_one_store(tmp_path: Path) -> None:
    """LIF-17: of the store."""
    store = SqlitePersistence(tmp_path / "s.db")

    async def run(name: str) -> None:
        await store.open()
        await Writer.new(store, name).write()
        await store.close()

    for name in ("one", "two"):
        asyncio.run(run(name))

    async def names() -> list[str]:
        await store.open()
        found = [row.session_id for row in await store.list(10)]
        await store.close()
        return found

    assert asyncio.run(names()) == ["two", "one"]


async def test_what_is_stored_does_not_come_out_in_an_error(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqlitePersistence(path)
    await store.open()
    writer = Writer.new(store)
    await writer.write(1)
    run_sql(path, "UPDATE events SET data = data || CAST(x'ff63616e617279' AS TEXT)")
    with pytest.raises(Exception, match="seq 0") as raised:
        await store.read(writer.id)
    await store.close()
    error: BaseException | None = raised.value
    while error is not None:
        assert "canary" not in f"{error!s} {error!r}"
        error = error.__cause__


async def test_deleting_leaves_nothing_of_a_session_but_its_tombstone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqlitePersistence(path)
    await store.open()
    writer, bystander = Writer.new(store, "s", meta={"a": 1}), Writer.new(store)
    await writer.write(3)
    await bystander.write(2)
    await store.delete("s")
    await store.close()
    assert run_sql(path, "SELECT count(*) FROM events") == [(2,)]
    assert run_sql(path, "SELECT id, header, title, owner, token, pid FROM sessions WHERE key = 1") == [
        ("s", None, None, None, None, None)
    ]


async def test_a_list_reads_no_events_and_sorts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqlitePersistence(path)
    await store.open()
    await store.close()
    for statement, values in ((reading._LIST, (1, "a", 1)), (reading._LIST_FROM_THE_NEWEST, (1,))):
        with closing(sqlite3.connect(path)) as connection:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        assert any("sessions_by_age" in step for step in plan), plan
        assert not any("events" in step or "TEMP" in step for step in plan), plan

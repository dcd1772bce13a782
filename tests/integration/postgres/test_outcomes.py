"""Connections that break at the worst moment: what was asked is in the log once, and who asked is told the truth."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest

from app.session.errors import PersistenceUnavailable, SequenceConflict, SessionFenced
from app.session.ownership import Owner
from app.session.session import Session
from app.session.store import SessionStore
from persistence.contract import Writer
from persistence.contract.round_trip import VALUES
from persistence.contract.samples import ALREADY_OVER, message, owner
from persistence.postgres import PostgresPersistence
from tests.support.checkpoints import pend
from tests.support.pg_proxy import Fault, PgProxy
from tests.support.postgres import connect, run_sql

COMMIT = "commit\0"  # whole, or "begin ... read committed" would be one too


async def stored(dsn: str, session: Session) -> list[int]:
    """The sizes of the batches that are stored, if they are exactly the live log; fails if they are not."""
    store = PostgresPersistence(dsn)
    await store.open()
    log = await store.read(session.id)
    await store.close()
    assert log.events == session.events
    borders = [-1, *(end.seq for end in log.ends)]
    return [end - start for start, end in pairwise(borders)]


@pytest.mark.parametrize("fault", ["lose", "cut"])
async def test_a_flush_after_a_broken_one_finds_its_own_rows_or_writes_them(postgres_dsn: str, fault: Fault) -> None:
    """PG-03 where the answer was lost after the commit, APD-05 where the statement never arrived."""
    async with PgProxy(postgres_dsn) as proxy:
        store = PostgresPersistence(proxy.dsn)
        await store.open()
        sessions = SessionStore(store, Owner("test"))
        session = await sessions.create("s")
        pend(session, "a", "b")
        await sessions.flush(session)
        pend(session, "c", "d", "e")
        proxy.next(fault, times=2)  # the store itself sends a batch again once
        with pytest.raises(PersistenceUnavailable):
            await sessions.flush(session)
        assert (proxy.fired, session.durable) == (2, 2)
        pend(session, "f")
        await sessions.flush(session)
        assert session.durable == 6
        assert await stored(postgres_dsn, session) == [2, 3, 1]
        await sessions.release(session)
        await store.close()


async def test_other_rows_at_those_seqs_lose_the_session(postgres_dsn: str) -> None:
    """PG-04."""
    async with PgProxy(postgres_dsn) as proxy:
        store, direct = PostgresPersistence(proxy.dsn), PostgresPersistence(postgres_dsn)
        await store.open()
        await direct.open()
        writer = Writer.new(store, "s")
        await writer.write(2)
        batch = writer.batch(2)
        proxy.next("cut", times=2)
        with pytest.raises(PersistenceUnavailable):
            await writer.send(batch)
        twin = Writer(direct, writer.header, writer.epoch, writer.head, list(writer.events))
        await twin.write(events=[message(2, "another")])
        with pytest.raises(SequenceConflict) as raised:
            await writer.send(batch)
        assert (raised.value.expected, raised.value.given) == (3, 2)
        assert len((await direct.read("s")).events) == 3
        await store.close()
        await direct.close()


async def test_two_hundred_answers_lost_leave_neither_a_gap_nor_a_duplicate(postgres_dsn: str) -> None:
    """PG-03: 200 times, also through the statement that sessions share."""
    async with PgProxy(postgres_dsn) as proxy:
        store = PostgresPersistence(proxy.dsn, writers=1)
        await store.open()
        writers = [Writer.new(store) for _ in range(3)]
        await asyncio.gather(*(writer.write(1) for writer in writers))
        for n in range(200):
            proxy.next("lose")
            await asyncio.gather(*(writer.write(1 + n % 3) for writer in writers[: 1 + n % 3]))
        assert proxy.fired == 200
        for writer in writers:
            await writer.check()
        await store.close()


async def test_a_claim_whose_answer_was_lost_was_made_once(postgres_dsn: str) -> None:
    async with PgProxy(postgres_dsn) as proxy:
        store = PostgresPersistence(proxy.dsn)
        await store.open()
        writer = Writer.new(store, lease_s=ALREADY_OVER)
        await writer.write(3)
        proxy.next("lose", text=COMMIT)
        epoch, log = await store.acquire(writer.id, owner("berta"))
        assert (proxy.fired, epoch.number, list(log.events)) == (1, 2, writer.events)
        writer.epoch = epoch
        await writer.write(1)
        proxy.next("cut", text=COMMIT)
        with pytest.raises(PersistenceUnavailable):
            await store.acquire(writer.id, owner("clara"), force=True)
        assert (await store.read(writer.id)).holder.epoch == 2
        await writer.write(1)
        await store.close()


async def test_a_fenced_writer_whose_batch_was_committed_is_told_so(postgres_dsn: str) -> None:
    """Its answer was lost, and somebody took the session over before it was asked for again."""
    async with PgProxy(postgres_dsn) as proxy:
        store, direct = PostgresPersistence(proxy.dsn), PostgresPersistence(postgres_dsn)
        await store.open()
        await direct.open()
        sessions = SessionStore(store, Owner("test"))
        session = await sessions.create("s")
        pend(session, "a")
        await sessions.flush(session)
        pend(session, "b")
        proxy.next("lose", times=2)
        with pytest.raises(PersistenceUnavailable):
            await sessions.flush(session)
        await direct.acquire("s", owner("berta"), force=True)
        with pytest.raises(SessionFenced) as raised:
            await sessions.flush(session)
        assert raised.value.committed is True
        await store.close()
        await direct.close()


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
async def test_a_batch_that_others_were_in_the_way_of_is_repeated_inside(postgres_dsn: str, sqlstate: str) -> None:
    """APD-06: a serialization failure, a deadlock; each of them twice."""
    store = PostgresPersistence(postgres_dsn)
    await store.open()
    writer = Writer.new(store)
    await writer.write(2)
    await run_sql(
        postgres_dsn,
        "create sequence public.n",
        f"""create function public.fault() returns trigger language plpgsql as $$ begin
            if nextval('public.n') <= 2 then raise 'planted' using errcode = '{sqlstate}'; end if;
            return new; end $$""",
        "create trigger fault before update on beforehand.sessions for each row execute function public.fault()",
    )
    await writer.write(3)
    assert await run_sql(postgres_dsn, "select last_value from public.n") == [(3,)]
    await writer.check()
    await store.close()


async def test_a_real_deadlock_reaches_no_caller(postgres_dsn: str) -> None:
    """APD-06: another client locks two sessions in the opposite order."""
    store = PostgresPersistence(postgres_dsn, writers=1)
    await store.open()
    writers = [Writer.new(store, name) for name in ("a", "b")]
    for writer in writers:
        await writer.write(1)
    other = await connect(postgres_dsn)
    lock = "select from beforehand.sessions where id = $1 for update"
    for _ in range(3):
        await other.execute("begin")
        await other.execute(lock, "b")
        writing = [asyncio.create_task(writer.write(1)) for writer in writers]
        await other.execute(lock, "a")
        await other.execute("commit")
        await asyncio.gather(*writing)
    for writer in writers:
        await writer.check()
    await other.close()
    await store.close()


async def test_a_server_that_says_a_warning_while_it_commits_has_promised_nothing(postgres_dsn: str) -> None:
    store = PostgresPersistence(postgres_dsn, writers=1)
    await store.open()
    writer, *others = (Writer.new(store) for _ in range(4))
    for one in (writer, *others):
        await one.write(2)
    await run_sql(
        postgres_dsn,
        """create function public.warn() returns trigger language plpgsql as
            $$ begin raise warning 'committed locally, perhaps'; return null; end $$""",
        """create constraint trigger warn after update on beforehand.sessions deferrable initially deferred
            for each row execute function public.warn()""",
    )
    batch = writer.batch(2)
    for operation in (
        lambda: writer.send(batch),
        lambda: asyncio.gather(*(writer.write(1) for writer in others)),
        lambda: store.renew(writer.id, writer.epoch),
        lambda: store.acquire(writer.id, owner(), force=True),
    ):
        with pytest.raises(PersistenceUnavailable) as raised:
            await operation()
        assert "warning" in raised.value.reason
    await run_sql(postgres_dsn, "drop function public.warn() cascade")
    writer.epoch, log = await store.acquire(writer.id, owner(), force=True)
    assert log.next_seq == 4
    await store.close()


async def test_a_weakened_synchronous_commit_is_no_checkpoint(postgres_dsn: str) -> None:
    store = PostgresPersistence(postgres_dsn, writers=1)
    await store.open()
    writers = [Writer.new(store) for _ in range(3)]
    for writer in writers:
        await writer.write(2)
    weaken = "do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$"
    await run_sql(postgres_dsn, weaken)
    await run_sql(
        postgres_dsn, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'beforehand'"
    )
    answers = await asyncio.gather(*(writer.write(1) for writer in writers), return_exceptions=True)
    assert [type(answer) for answer in answers] == [PersistenceUnavailable] * 3
    assert all("synchronous_commit" in str(answer) for answer in answers)
    for writer in writers:
        await writer.check()
    await store.close()


async def test_what_is_stored_is_valid_json_to_any_other_client(postgres_dsn: str) -> None:
    """PG-10."""
    store = PostgresPersistence(postgres_dsn)
    await store.open()
    writer = Writer.new(store, meta={"values": VALUES})
    await writer.write(events=[message(n, [{"type": "x", "value": value}]) for n, value in enumerate(VALUES)])
    rows = await run_sql(postgres_dsn, "select data, data::json is not null from beforehand.events order by seq")
    assert [data for data, _ in rows] == [event.text for event in writer.events]
    assert all(is_json for _, is_json in rows)
    for data, _ in rows:
        assert data.isascii()
        json.loads(data, parse_int=str)
    assert await run_sql(postgres_dsn, "select header from beforehand.sessions") == [(writer.header.text,)]
    await store.close()

"""Appends of many sessions in one statement: each is decided and answered alone, and nobody waits for a stranger."""

from __future__ import annotations

import asyncio

import pytest

from app.session.batch import Header
from app.session.errors import (
    CorruptLog,
    PersistenceUnavailable,
    SequenceConflict,
    SessionDeleted,
    SessionFenced,
    SessionNotFound,
)
from persistence.contract import Writer
from persistence.contract.samples import message, owner
from persistence.postgres import PostgresPersistence
from tests.support.postgres import connect, run_sql

LOCK = "select from beforehand.sessions where id = $1 for update"


async def opened(dsn: str, **options: int) -> PostgresPersistence:
    store = PostgresPersistence(dsn, **options)  # type: ignore[arg-type]  # whole numbers alone
    await store.open()
    return store


async def transactions(dsn: str) -> int:
    """How many transactions stored batches of those sessions: each leaves one number in the rows it wrote."""
    rows = await run_sql(dsn, "select distinct xmin::text from beforehand.sessions")
    return len(rows)


async def test_what_waits_together_is_stored_in_one_transaction(postgres_dsn: str) -> None:
    store = await opened(postgres_dsn, writers=1)
    writers = [Writer.new(store, f"s{n}") for n in range(40)]
    for writer in writers:
        await writer.write(2)
    await asyncio.gather(*(writer.write(1 + n % 4) for n, writer in enumerate(writers)))
    assert await transactions(postgres_dsn) == 1
    for writer in writers:
        await writer.check()
    await store.close()


async def test_a_group_is_no_larger_than_the_setting(postgres_dsn: str) -> None:
    store = await opened(postgres_dsn, writers=1, group_max_bytes=3000)
    writers = [Writer.new(store, f"s{n}") for n in range(9)]
    for writer in writers:
        await writer.write(1)
    await asyncio.gather(*(writer.write(events=[message(1, "x" * 900)]) for writer in writers))
    assert await transactions(postgres_dsn) == 3
    await store.close()


async def test_a_first_batch_goes_alone(postgres_dsn: str) -> None:
    store = await opened(postgres_dsn, writers=1)
    writers = [Writer.new(store, f"s{n}") for n in range(5)]
    await asyncio.gather(*(writer.write(1) for writer in writers))
    assert await transactions(postgres_dsn) == 5
    await store.close()


async def test_one_sessions_refusal_is_nobody_elses(postgres_dsn: str) -> None:
    store = await opened(postgres_dsn, writers=1)
    names = ("a-good", "b-fenced", "c-good", "d-conflict", "e-deleted", "f-header", "g-repeated", "h-good", "i-missing")
    writers = {name: Writer.new(store, name) for name in names}
    for name, writer in writers.items():
        if name != "i-missing":
            await writer.write(2)
    await store.acquire("b-fenced", owner("berta"), force=True)
    await store.delete("e-deleted")
    batches = {name: writer.batch(1) for name, writer in writers.items()}
    batches["d-conflict"] = Writer.new(store, "d-conflict").batch(events=[message(5)])
    batches["g-repeated"] = writers["g-repeated"].batches[-1]
    batches["i-missing"] = Writer.new(store, "i-missing").batch(events=[message(5)])
    writers["f-header"].header = Header.make("f-header", 1, meta={"another": "one"})
    answers = await asyncio.gather(
        *(store.append(writers[name].header, batches[name], writers[name].epoch) for name in names),
        return_exceptions=True,
    )
    assert {name: type(answer) for name, answer in zip(names, answers, strict=True) if answer} == {
        "b-fenced": SessionFenced,
        "d-conflict": SequenceConflict,
        "e-deleted": SessionDeleted,
        "f-header": CorruptLog,
        "i-missing": SessionNotFound,
    }
    found = {row.session_id: row.next_seq for row in await store.list(20)}
    good = dict.fromkeys(("a-good", "c-good", "h-good"), 3)
    assert found == {**good, **dict.fromkeys(("b-fenced", "d-conflict", "f-header", "g-repeated"), 2)}
    await store.close()


async def test_a_locked_row_holds_up_its_own_session_alone(postgres_dsn: str) -> None:
    """CRD-33: in a shared statement too."""
    store = await opened(postgres_dsn, writers=2)
    writers = [Writer.new(store, f"s{n}") for n in range(6)]
    for writer in writers:
        await writer.write(1)
    other = await connect(postgres_dsn)
    await other.execute("begin")
    await other.execute(LOCK, "s3")
    writing = [asyncio.create_task(writer.write(1)) for writer in writers]
    await asyncio.gather(*writing[:3], *writing[4:])
    assert not writing[3].done()
    await asyncio.gather(*(writer.write(1) for writer in writers if writer.id != "s3"))
    await other.execute("commit")
    await asyncio.gather(*writing)
    for writer in writers:
        await writer.check()
    await other.close()
    await store.close()


async def test_as_many_locked_rows_as_there_are_writers_hold_up_nobody_else(postgres_dsn: str) -> None:
    """CRD-33: neither who appends nor who renews or releases keeps a writer while another client has the row."""
    store = await opened(postgres_dsn, writers=2, pool_timeout_ms=3000)
    writers = [Writer.new(store, f"s{n}") for n in range(5)]
    for writer in writers:
        await writer.write(1)
    late, soon, renewing, releasing, free = writers
    others = [await connect(postgres_dsn) for _ in range(4)]
    for other, writer in zip(others, writers, strict=False):
        await other.execute("begin")
        await other.execute(LOCK, writer.id)
    batch = late.batch(2)
    waiting = [
        asyncio.ensure_future(work)
        for work in (
            late.send(batch),
            soon.write(2),
            store.renew(renewing.id, renewing.epoch),
            store.release(releasing.id, releasing.epoch),
        )
    ]
    for _ in range(5):
        await free.write(1)
    assert not any(task.done() for task in waiting)
    for other in others[1:]:
        await other.execute("commit")
    await asyncio.gather(*waiting[1:])
    with pytest.raises(PersistenceUnavailable) as raised:
        await waiting[0]
    assert raised.value.reason == "another transaction holds the session's row"
    await others[0].execute("commit")
    await late.send(batch)
    for writer in (late, soon, renewing, free):
        await writer.check()
    for other in others:
        await other.close()
    await store.close()


async def test_a_store_that_is_closed_answers_what_waits_for_a_lock_first(postgres_dsn: str) -> None:
    store = await opened(postgres_dsn)
    writer = Writer.new(store, "s")
    await writer.write(1)
    other = await connect(postgres_dsn)
    await other.execute("begin")
    await other.execute(LOCK, "s")
    writing = asyncio.create_task(writer.write(1))
    await asyncio.sleep(0)
    closing = asyncio.create_task(store.close())
    await other.execute("commit")
    await asyncio.gather(writing, closing)
    await other.close()
    await store.open()
    await writer.check()
    await store.close()


async def test_a_fenced_a_deleted_and_a_locked_session_hold_up_nobody(postgres_dsn: str) -> None:
    """RUL-08: of 32 that wait, 29 are stored together, and three are answered on their own."""
    store = await opened(postgres_dsn, writers=2)
    writers = [Writer.new(store, f"s{n:02}") for n in range(32)]
    for writer in writers:
        await writer.write(1)
    await store.acquire("s03", owner("berta"), force=True)
    await store.delete("s07")
    other = await connect(postgres_dsn)
    await other.execute("begin")
    await other.execute(LOCK, "s11")
    writing = [asyncio.create_task(writer.write(2)) for writer in writers]
    answers = await asyncio.gather(*writing[:11], *writing[12:], return_exceptions=True)
    assert not writing[11].done()
    assert {n: type(answer) for n, answer in enumerate(answers) if isinstance(answer, BaseException)} == {
        3: SessionFenced,
        7: SessionDeleted,
    }
    stored = "select count(*), count(distinct xmin::text) from beforehand.sessions where next_seq = 3"
    (found,) = await run_sql(postgres_dsn, stored)
    assert tuple(found) == (29, 1)
    await other.execute("commit")
    await writing[11]
    await writers[11].check()
    await other.close()
    await store.close()


async def test_an_error_of_the_shared_statement_is_the_answer_of_its_cause_alone(postgres_dsn: str) -> None:
    """ST-08: the store refuses one session's event; those that were written with it are stored."""
    store = await opened(postgres_dsn, writers=1)
    writers = [Writer.new(store, f"s{n}") for n in range(6)]
    for writer in writers:
        await writer.write(1)
    await run_sql(
        postgres_dsn,
        "create function public.fault() returns trigger language plpgsql as $$ begin raise 'planted'; end $$",
        """create trigger fault before insert on beforehand.events
            for each row when (new.session_id = 's2') execute function public.fault()""",
    )
    answers = await asyncio.gather(*(writer.write(2) for writer in writers), return_exceptions=True)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, PersistenceUnavailable)] == [2]
    for writer in writers:
        await writer.check()
    await store.close()


async def test_a_session_of_which_two_batches_wait_is_written_in_order(postgres_dsn: str) -> None:
    store = await opened(postgres_dsn, writers=1)
    writer, others = Writer.new(store, "s"), [Writer.new(store, f"o{n}") for n in range(3)]
    for one in (writer, *others):
        await one.write(1)
    first = writer.batch(2)
    ahead = Writer(store, writer.header, writer.epoch, first.digest, [*writer.events, *first.events])
    await asyncio.gather(writer.send(first), ahead.write(2), *(other.write(1) for other in others))
    assert len((await store.read("s")).events) == 5
    await store.close()


async def test_four_hundred_sessions_at_once_cross_nowhere(postgres_dsn: str) -> None:
    """ST-24: with two stores, as two processes would have."""
    stores = [await opened(postgres_dsn), await opened(postgres_dsn)]
    writers = [Writer.new(stores[n % 2], f"s{n}") for n in range(400)]
    for _ in range(4):
        await asyncio.gather(*(writer.write(2) for writer in writers))
    for writer in writers[::7]:
        await writer.check(stores[0])
    assert {row.next_seq for row in await stores[1].list(1000)} == {8}
    for store in stores:
        await store.close()

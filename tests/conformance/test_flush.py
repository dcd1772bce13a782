"""The flush: shared by all who wait, bounded in time, and never a reason to write anything twice or out of order."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from app.llm.scripted import say
from app.session import events as ev
from app.session.drain import DrainLimits
from app.session.errors import FlushTimeout, PersistenceUnavailable
from tests.support.checkpoints import NotingAdapter, pend
from tests.support.faults import DOWN, FailBefore
from tests.support.house import House, types
from tests.support.stores import Place
from tests.support.timed import TimedPersistence, timeline, until_ms
from tests.support.virtual_time import all_quiet, virtual_time, waits

NOTE = ev.ExtensionType("test/note")


@virtual_time
async def test_a_waiter_that_is_cancelled_leaves_the_others_alone():
    """FLU-01: one of ten in a shared write: it gets its CancelledError, the nine return, and there is one write."""
    async with timeline(None) as line:
        pend(line.session)
        held = line.store.hold("append")
        waiters = [asyncio.create_task(line.flush()) for _ in range(10)]
        await held.reached()
        waiters[3].cancel()
        assert not await waits(waiters[3])
        assert waiters[3].cancelled()
        assert all([await waits(waiter) for waiter in waiters if waiter is not waiters[3]])
        held.open()
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert [type(result) for result in results if result is not None] == [asyncio.CancelledError]
        assert line.sent == [(0, [0])]
        assert await line.stored()


@virtual_time
async def test_the_one_who_began_a_write_can_be_cancelled_too():
    """FLU-01: the write goes on, and the one who joined it returns."""
    async with timeline(None) as line:
        pend(line.session)
        held = line.store.hold("append")
        first, second = (asyncio.create_task(line.flush()) for _ in range(2))
        await held.reached()
        first.cancel()
        await all_quiet()
        held.open()
        await second
        assert first.cancelled()
        assert line.sent == [(0, [0])]


@virtual_time
async def test_a_flush_returns_at_its_own_mark():
    """FLU-02: events that come in without a pause are taken along, and hold it up no longer than the next write."""
    async with timeline(None, max_batch_events=10) as line:

        async def slow() -> None:
            while True:
                held = line.store.hold("append")
                await held.reached()
                await asyncio.sleep(0.020)
                held.open()

        async def talk() -> None:
            while True:
                pend(line.session)
                await asyncio.sleep(0.001)

        others = [asyncio.create_task(slow()), asyncio.create_task(talk())]
        await until_ms(4)
        mark = len(line.session)
        assert mark == 5
        await line.flush()
        assert asyncio.get_running_loop().time() == pytest.approx(0.024)
        assert mark <= line.session.durable < len(line.session)
        for other in others:
            other.cancel()
        await asyncio.wait(others)


@pytest.mark.parametrize("outcome", ["late", "never"])
@virtual_time
async def test_a_store_slower_than_the_patience_of_a_flush_keeps_the_adapter_shut(outcome: str):
    """FLU-03: FlushTimeout at C1; the batch, stored late or not at all, is in the log once."""
    store = TimedPersistence()
    adapter = NotingAdapter([], [say("one")])
    house = House(
        persistence=store,
        adapters=[adapter],
        drain_limits=DrainLimits(write_behind_ms=None, flush_timeout_ms=1000),
    )
    async with house.agent() as agent:
        held = store.hold("append", then=None if outcome == "late" else DOWN)
        failed = await agent.wait(agent.send("go"))
        assert types(agent.session)[3:] == [
            *("step/start", "request/header", "step/end", "turn/end{error CHECKPOINT_FAILED}"),
        ]
        assert failed.error is not None
        assert failed.error["message"] == str(FlushTimeout("s", 1000))
        assert not failed.durable
        assert adapter.requests == []
        # Neither the final flush nor anybody else overtakes the write that is still on its way.
        assert store.sent == [(0, [0, 1, 2, 3, 4])]
        assert asyncio.get_running_loop().time() == pytest.approx(2)
        held.open()
        answered = await agent.wait(agent.send("again"))
        assert (answered.reason, answered.durable) == ("completed", True)
        assert (await store.inner.read("s")).events == agent.session.events
        again = [seqs for _, seqs in store.sent[1:]]
        assert again[0] == ([5, 6, 7, 8, 9, 10] if outcome == "late" else [0, 1, 2, 3, 4])


@virtual_time
async def test_a_flush_that_waited_for_a_failed_background_write_makes_its_own_attempt():
    """WB-08: and succeeds."""
    async with timeline() as line:
        pend(line.session)
        held = line.store.hold("append", then=DOWN)
        await held.reached()
        flushing = asyncio.create_task(line.flush())
        assert await waits(flushing)
        held.open()
        await flushing
        assert line.sent == [(200, [0]), (200, [0])]
        assert await line.stored()


@virtual_time
async def test_a_flush_whose_own_write_fails_tells_everybody_who_waits():
    """WB-09: each gets that error; the events are kept in order, and the next flush writes all of them."""
    async with timeline(None) as line:
        pend(line.session)
        held = line.store.hold("append", then=DOWN)
        first = asyncio.create_task(line.flush())
        await held.reached()
        pend(line.session)
        second = asyncio.create_task(line.flush())
        assert await waits(second)
        held.open()
        for flushing in (first, second):
            with pytest.raises(PersistenceUnavailable) as raised:
                await flushing
            assert raised.value is DOWN
        await until_ms(60_000)
        assert line.sent == [(0, [0])]
        await line.flush()
        assert [seqs for _, seqs in line.sent] == [[0], [0], [1]]
        assert await line.stored()


async def test_a_long_backlog_is_written_in_batches_between_groups():
    """WB-10: 150 000 events whose first write fails: all stored once, within the limits, and no group is split."""
    limits = DrainLimits(write_behind_ms=None, max_batch_events=5_000, max_batch_bytes=100_000)
    store = TimedPersistence()
    house = House(persistence=store, drain_limits=limits, extensions=[NOTE])
    async with house.opened():
        session = await house.sessions.create("s")
        ends, sizes = set[int](), Random(1)
        while len(session) < 150_000:
            # Some groups of few events, some of bytes that nearly fill a batch, one that no batch has room for.
            count = 6_000 if not ends else sizes.randrange(1, 50)
            text = "x" * sizes.choice([1, 1, 1, 1_500])
            session.append(*(ev.Extension(NOTE, {"text": text}) for _ in range(count)))
            ends.add(len(session))
        store.next("append", FailBefore(DOWN))
        with pytest.raises(PersistenceUnavailable):
            await house.sessions.flush(session)
        assert session.durable == 0
        await house.sessions.flush(session)
        assert (await store.inner.read("s")).events == session.events
        assert len(store.written) > 30
        assert all(batch.next_seq in ends for batch in store.written)
        oversized, *others = store.written
        assert len(oversized.events) == 6_000
        assert all(len(batch.events) <= 5_000 for batch in others)
        assert all(sum(len(event.text) for event in batch.events) <= 100_000 for batch in others)
        await house.sessions.release(session)


async def test_callers_that_are_cancelled_anywhere_lose_and_repeat_nothing(durable_place: Place):
    """RND-02: at 50 random points of 1 000 checkpoints: each gets its CancelledError, and the log is whole."""
    random, cancelled = Random(1), 0
    points = set(random.sample(range(1000), 50))
    house = House(persistence=durable_place.persistence())
    async with house.opened():
        session = await house.sessions.create("s")
        for n in range(1000):
            pend(session, f"m{n}")
            if n not in points:
                await house.sessions.flush(session, "request")
                continue
            flushing = asyncio.create_task(house.sessions.flush(session, "request"))
            for _ in range(random.randrange(6)):
                await asyncio.sleep(0)
            if flushing.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await flushing
                cancelled += 1
        await house.sessions.flush(session)
        assert cancelled > 25
        log = await house.persistence.read("s")
        assert log.events == session.events
        assert len(log.events) == 1000
        # Nobody holds on to anything in the store: another process gets to write at once, and so do we.
        other = House(persistence=durable_place.persistence())
        async with other.opened():
            taken = await other.sessions.resume("s", force=True)
            pend(taken)
            await other.sessions.release(taken)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@virtual_time
async def test_what_a_cancelled_flush_left_over_gets_a_window():
    """FLU-01: its write went on, but no further one: what no batch had room for is written when its window ends."""
    async with timeline(max_batch_events=1) as line:
        pend(line.session, "m1")
        pend(line.session, "m2")
        held = line.store.hold("append")
        flushing = asyncio.create_task(line.flush())
        await held.reached()
        flushing.cancel()
        await until_ms(50)
        held.open()
        await until_ms(249)
        assert line.sent == [(0, [0])]
        await until_ms(250)
        assert line.sent == [(0, [0]), (250, [1])]


@virtual_time
async def test_sessions_do_not_wait_for_each_other():
    """CRD-33: while one session's write is held up, another one's goes on."""
    async with timeline(None) as line:
        pend(line.session)
        held = line.store.hold("append")
        flushing = asyncio.create_task(line.flush())
        await held.reached()
        other = await line.house.sessions.create("other")
        pend(other)
        await line.house.sessions.flush(other)
        assert other.durable == 1
        assert await waits(flushing)
        held.open()
        await flushing
        await line.house.sessions.release(other)

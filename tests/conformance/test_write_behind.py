"""The write-behind window: how old an unwritten event gets when nobody flushes."""

from __future__ import annotations

import asyncio

from app.session import events as ev
from app.session.drain import DrainLimits
from app.session.ownership import this_owner
from tests.support.checkpoints import pend
from tests.support.child import Child, for_ever, mark
from tests.support.faults import DOWN, FailBefore
from tests.support.house import House
from tests.support.stores import Place, place_of
from tests.support.timed import timeline, until_ms
from tests.support.virtual_time import virtual_time
from tests.support.watching import notices


@virtual_time
async def test_the_first_event_opens_the_window_and_later_ones_do_not_extend_it():
    """WB-01: nothing is written before its end; then both events are, and nothing is armed any more."""
    async with timeline() as line:
        pend(line.session)
        await until_ms(150)
        pend(line.session)
        await until_ms(199)
        assert line.sent == []
        await until_ms(200)
        assert line.sent == [(200, [0, 1])]
        assert line.store.reasons == ["background"]
        await until_ms(10_000)
        assert line.sent == [(200, [0, 1])]


@virtual_time
async def test_a_window_takes_everything_that_came_in_it():
    """WB-02: twenty events, one batch."""
    async with timeline() as line:
        for n in range(20):
            await until_ms(n * 10)
            pend(line.session)
        await until_ms(200)
        assert line.sent == [(200, list(range(20)))]


@virtual_time
async def test_an_event_that_comes_during_a_flush_has_a_window_of_its_own():
    """WB-03: two flushes at once are one write; what came meanwhile holds neither of them up."""
    async with timeline() as line:
        pend(line.session)
        held = line.store.hold("append")
        await until_ms(50)
        flushes = [asyncio.create_task(line.flush()) for _ in range(2)]
        await until_ms(100)
        pend(line.session)
        await until_ms(120)
        held.open()
        await asyncio.gather(*flushes)
        assert line.sent == [(50, [0])]
        assert asyncio.get_running_loop().time() == 0.12
        await until_ms(299)
        assert line.sent == [(50, [0])]
        await until_ms(300)
        assert line.sent == [(50, [0]), (300, [1])]


@virtual_time
async def test_nothing_pending_is_nothing_to_do():
    """WB-04: the flush returns without asking the store, and arms nothing; for a new session and for a written one."""
    async with timeline() as line:
        line.store.log.clear()
        await line.flush()
        assert line.store.log == []
        pend(line.session)
        await line.flush()
        await line.flush()
        await until_ms(1000)
        assert line.sent == [(0, [0])]
        assert line.store.log == ["append", "append done"]


@virtual_time
async def test_a_window_that_ends_during_a_write_is_followed_up_at_once():
    """WB-05: the write lasts beyond the window of what came meanwhile."""
    async with timeline() as line:
        pend(line.session)
        held = line.store.hold("append")
        await until_ms(250)
        pend(line.session)
        await until_ms(600)
        assert line.sent == [(200, [0])]
        held.open()
        await until_ms(601)
        assert line.sent == [(200, [0]), (600, [1])]


@virtual_time
async def test_a_window_that_outlasts_a_write_is_kept():
    """WB-05: the write ends 50 ms after the event came; that is written when its own window ends."""
    async with timeline() as line:
        pend(line.session)
        held = line.store.hold("append")
        await until_ms(250)
        pend(line.session)
        await until_ms(300)
        held.open()
        await until_ms(449)
        assert line.sent == [(200, [0])]
        await until_ms(450)
        assert line.sent == [(200, [0]), (450, [1])]


@virtual_time
async def test_a_failed_background_write_is_told_once_and_not_retried_by_itself(caplog):
    """WB-07: the next event opens a window; at its end the failed batch is repeated, and what is new follows."""
    async with timeline() as line:
        seen = notices(line.session)
        line.store.next("append", FailBefore(DOWN))
        pend(line.session)
        await until_ms(1200)
        assert line.sent == [(200, [0])]
        assert seen == [ev.AgentError("PERSISTENCE_UNAVAILABLE", str(DOWN))]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        pend(line.session)
        await until_ms(1399)
        assert line.sent == [(200, [0])]
        await until_ms(5000)
        # Whether the first try was stored is not known here: so exactly that again, alone, before anything newer.
        assert line.sent == [(200, [0]), (1400, [0]), (1400, [1])]
        assert len(seen) == len(caplog.records) == 1
        assert await line.stored()


@virtual_time
async def test_a_window_that_ended_during_a_failing_write_is_not_forgotten():
    """What came in during a write that fails has had its window: it is tried at once, and then not again."""
    async with timeline() as line:
        pend(line.session)
        held = line.store.hold("append", then=DOWN)
        line.store.next("append", FailBefore(DOWN))
        await until_ms(250)
        pend(line.session)
        await until_ms(600)
        held.open()
        await until_ms(5000)
        assert line.sent == [(200, [0]), (600, [0])]
        await line.flush()
        assert line.sent == [(200, [0]), (600, [0]), (5000, [0]), (5000, [1])]
        assert await line.stored()


@virtual_time
async def test_a_flush_does_not_wait_for_the_window_and_ends_it():
    """WB-12: what is pending is written at once; nothing is armed after."""
    async with timeline() as line:
        pend(line.session)
        await until_ms(50)
        await line.flush()
        assert line.sent == [(50, [0])]
        await until_ms(5000)
        assert line.sent == [(50, [0])]


@virtual_time
async def test_what_a_background_write_leaves_over_follows_at_once():
    """A window that holds more than one batch: they come one after another, none waits for a window."""
    async with timeline(max_batch_events=2) as line:
        for n in range(5):
            pend(line.session, f"m{n}")
        await until_ms(200)
        assert line.sent == [(200, [0, 1]), (200, [2, 3]), (200, [4])]


async def append_and_wait(kind: str, directory: str) -> None:
    """Run by a child: with write-behind off, events come in and nobody flushes."""
    house = House(
        persistence=place_of(kind, directory).persistence(),
        owner=this_owner(),
        drain_limits=DrainLimits(write_behind_ms=None),
    )
    async with house.opened():
        pend(await house.sessions.create("s"), *(f"m{n}" for n in range(100)))
        mark("appended")
        await for_ever()


async def test_without_a_window_only_a_flush_writes(durable_place: Place):
    """WB-16: killed before any flush, nothing of the session is stored."""
    with Child(f"{__name__}:append_and_wait", *durable_place.words) as child:
        child.wait_for("appended")
        child.kill()
    persistence = durable_place.persistence()
    await persistence.open()
    assert await persistence.list(10) == []
    await persistence.close()

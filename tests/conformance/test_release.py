"""How a session stops being live here: released, found to be lost, deleted; and what that may never lose or leave."""

from __future__ import annotations

import asyncio
import gc

import pytest

from app.llm.scripted import gate, say
from app.session import events as ev
from app.session.errors import (
    AgentClosed,
    FlushTimeout,
    PersistenceUnavailable,
    SessionDeleted,
    SessionFenced,
    SessionNotLive,
)
from app.session.ownership import Owner
from tests.support.bodies import Bodies, calls
from tests.support.checkpoints import pend
from tests.support.faults import DOWN, FailAfter, FailBefore, Fault, FaultyPersistence
from tests.support.gates import Gate
from tests.support.house import House, types
from tests.support.interrupted import Open, append_open_turn
from tests.support.stores import Place
from tests.support.timed import Timeline, timeline, until_ms
from tests.support.virtual_time import all_quiet, virtual_time, waits
from tests.support.watching import results, unhandled_errors

OTHER = Owner("other")
FAULTS: tuple[Fault, ...] = (FailBefore(DOWN), FailAfter(DOWN))


async def test_a_release_whose_flush_fails_leaves_the_session_live(place: Place):
    """LIF-19: it raises, the events are kept, and once the store heals it works."""
    store = FaultyPersistence(place.persistence())
    house = House(persistence=store)
    async with house.opened():
        session = await house.sessions.create("s")
        pend(session, "m1", "m2")
        store.always("append", FailBefore(DOWN))
        for _ in range(2):
            with pytest.raises(PersistenceUnavailable):
                await house.sessions.release(session)
        assert house.sessions.get("s") is session
        pend(session, "m3")
        assert (len(session), session.durable) == (3, 0)
        store.heal()
        await house.sessions.release(session)
        assert house.sessions.get("s") is None
        log = await store.inner.read("s")
        assert (log.events, log.holder.owner) == (session.events, None)


async def test_a_release_whose_lease_cannot_be_ended_can_be_repeated(place: Place):
    """LIF-19: whether the store did it or not: the session stays live, and the next release ends it."""
    for number, fault in enumerate(FAULTS):
        store = FaultyPersistence(place.persistence())
        house = House(persistence=store)
        async with house.opened():
            session = await house.sessions.create(f"s{number}")
            pend(session)
            store.next("release", fault)
            with pytest.raises(PersistenceUnavailable):
                await house.sessions.release(session)
            assert house.sessions.get(session.id) is session
            await house.sessions.release(session)
            assert house.sessions.get(session.id) is None
            assert not session.is_lost
            assert (await store.inner.read(session.id)).holder.owner is None


@virtual_time
async def test_what_comes_in_during_a_release_is_not_forgotten():
    """LIF-19: during its flush it is stored as well; once the lease is being ended nothing is taken any more."""
    async with timeline(None) as line:
        pend(line.session, "before")
        flushed, ended = line.store.hold("append"), line.store.hold("release")
        releasing = asyncio.create_task(line.house.sessions.release(line.session))
        await flushed.reached()
        pend(line.session, "during")
        flushed.open()
        await ended.reached()
        with pytest.raises(SessionNotLive):
            pend(line.session, "after")
        ended.open()
        await releasing
        assert [event.data["message"]["id"] for event in line.session.events] == ["before", "during"]
        assert await line.stored()


@virtual_time
async def test_a_release_that_is_cancelled_can_be_repeated():
    """LIF-19: whichever of its waits it stood in."""
    for place in ("append", "release"):
        async with timeline(None) as line:
            pend(line.session)
            held = line.store.hold(place)
            releasing = asyncio.create_task(line.house.sessions.release(line.session))
            await held.reached()
            releasing.cancel()
            await asyncio.wait((releasing,))
            assert line.house.sessions.get("s") is line.session
            pend(line.session)
            held.open()
            await line.house.sessions.release(line.session)
            assert await line.stored()


@virtual_time
async def test_two_releases_at_once_are_one():
    """LIF-11: both return, and nobody takes the session to be lost."""
    async with timeline(None) as line:
        pend(line.session)
        held = line.store.hold("release")
        both = [asyncio.create_task(line.house.sessions.release(line.session)) for _ in range(2)]
        await held.reached()
        await all_quiet()
        held.open()
        await asyncio.gather(*both)
        assert not line.session.is_lost
        assert line.house.sessions.live == ()
        with pytest.raises(SessionNotLive):
            await line.house.sessions.release(line.session)


@virtual_time
async def test_a_release_during_a_background_write_waits_for_it():
    """LIF-19: it takes what is left after it, ends the lease last, and leaves nothing running."""
    reported = unhandled_errors()
    async with timeline() as line:
        pend(line.session)
        held = line.store.hold("append")
        await until_ms(250)
        pend(line.session)
        releasing = asyncio.create_task(line.house.sessions.release(line.session))
        assert await waits(releasing)
        await until_ms(1000)
        held.open()
        await releasing
        await until_ms(60_000)
        assert line.sent == [(200, [0]), (1000, [1])]
        assert line.store.log[-2:] == ["release", "release done"]
        assert await line.stored()
    gc.collect()
    assert reported == []


# --------------------------------------------------------------------------------- lost


async def lose(line: Timeline) -> None:
    """Have an open turn, and let somebody else take the session."""
    append_open_turn(line.session, Open("c1"))
    await line.flush()
    await line.store.inner.acquire("s", OTHER, force=True)


@virtual_time
async def test_a_lost_session_asks_nothing_of_the_store_any_more(caplog):
    """OWN-04: a background write finds out; what closes the turn is in memory, and no window writes it."""
    reported = unhandled_errors()
    async with timeline() as line:
        await lose(line)
        pend(line.session)
        await until_ms(200)
        assert line.session.is_lost
        line.store.log.clear()
        error = {"code": "ABORTED", "message": "tool call aborted"}
        line.session.append(ev.ToolResult(1, 1, "c1", 6, True, error=error))
        line.session.append(ev.StepEnd(1, 1), ev.TurnEnd(1, "error", error=error))
        await until_ms(60_000)
        for act in (line.flush, lambda: line.house.sessions.check_ownership(line.session)):
            with pytest.raises(SessionFenced):
                await act()
        with pytest.raises(SessionFenced):
            pend(line.session)
        await line.house.sessions.release(line.session)
        assert line.store.log == []
        with pytest.raises(SessionNotLive):
            line.session.append(ev.InboxDiscarded(["m0"], "test"))
        assert "4 events that were never stored" in caplog.records[-1].getMessage()
    gc.collect()
    assert reported == []


@virtual_time
async def test_a_lost_session_is_lost_whatever_is_pending():
    """OWN-04: a flush that has nothing to write fails all the same, and its release leaves no timer behind."""
    async with timeline() as line:
        pend(line.session)
        await line.flush()
        pend(line.session)
        await line.house.sessions.delete("s")
        empty = await line.house.sessions.create("t")
        pend(empty)
        await line.house.sessions.flush(empty)
        await line.house.sessions.delete("t")
        for session in (line.session, empty):
            with pytest.raises(SessionDeleted):
                await line.house.sessions.flush(session)
            await line.house.sessions.release(session)
        scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        assert [timer for timer in scheduled if not timer.cancelled()] == []


@virtual_time
async def test_a_session_found_to_be_lost_by_its_release_is_forgotten():
    """OWN-04: the release says so, and there is nothing left to release."""
    for pending in (True, False):
        async with timeline(None) as line:
            await lose(line)
            if pending:
                pend(line.session)
            with pytest.raises(SessionFenced):
                await line.house.sessions.release(line.session)
            assert line.house.sessions.live == ()
            with pytest.raises(SessionNotLive):
                await line.flush()


@virtual_time
async def test_an_agent_whose_closing_finds_its_session_lost_is_closed():
    """INB-17: closing raises, whoever waits for a message is told, and the agent is closed all the same."""
    async with timeline(None) as line:
        agent = await line.house.agents.create("t")
        context = agent.inject("by the way")
        await line.house.sessions.flush(agent.session)
        waiting = asyncio.create_task(agent.wait(context))
        await all_quiet()
        await line.store.inner.acquire("t", OTHER, force=True)
        with pytest.raises(SessionFenced):
            await agent.close()
        with pytest.raises(SessionFenced):
            await waiting
        assert agent.status == "closed"
        assert line.house.sessions.get("t") is None


@virtual_time
async def test_a_write_without_an_answer_holds_up_nobody_for_ever():
    """FLU-03: a release gives up with the flush; of a lost session it forgets it, whatever comes of the write."""
    reported = unhandled_errors()
    async with timeline(None, flush_timeout_ms=1000) as line:
        pend(line.session)
        await line.flush()
        pend(line.session)
        held = line.store.hold("append", after=True)
        with pytest.raises(FlushTimeout):
            await line.house.sessions.release(line.session)
        assert line.house.sessions.get("s") is line.session
        await line.house.sessions.delete("s")
        await line.house.sessions.release(line.session)
        assert line.house.sessions.live == ()
        held.open()
        await all_quiet()
    gc.collect()
    assert reported == []


# --------------------------------------------------------------------------------- deleted


@pytest.mark.parametrize("by", ["this process", "another"])
async def test_a_session_deleted_in_the_middle_of_a_body_enters_no_other(place: Place, by: str):
    """DEL-03: its next checkpoint fails, the agent closes, and the session stays deleted."""
    bodies = Bodies("c1")
    house = House([calls("alone c1", "alone c2"), say("never")], [bodies.alone], place.persistence())
    other = House(persistence=place.persistence())
    async with house.opened(), other.opened():
        agent = await house.agents.create("s")
        waiting = asyncio.create_task(agent.wait(agent.send("go")))
        await bodies.started("c1")
        await (house if by == "this process" else other).sessions.delete("s")
        bodies.let_go("c1")
        with pytest.raises(SessionDeleted):
            await waiting
        assert bodies.order == ["c1 starts", "c1 ends"]
        code = "ABORTED_BEFORE_DISPATCH" if by == "this process" else "CHECKPOINT_FAILED"
        first = "ABORTED" if by == "this process" else "c1"
        assert results(agent.session) == [("c1", first), ("c2", code)]
        assert types(agent.session)[-2:] == ["step/end", "turn/end{error SESSION_DELETED}"]
        assert len(house.adapter.requests) == 1
        assert house.sessions.live == ()
        for again in (house.sessions.create, house.sessions.resume):
            with pytest.raises(SessionDeleted):
                await again("s")


@virtual_time
async def test_a_session_deleted_while_it_is_written_stays_deleted():
    """DEL-02: with an append in flight, and a batch waiting in the window: both are told, and nothing comes back."""
    for place in ("before the append", "in the window"):
        async with timeline() as line:
            agent = await line.house.agents.create("t")
            agent.inject("stored")
            await line.house.sessions.flush(agent.session)
            agent.inject("pending")
            if place == "before the append":
                held = line.store.hold("append")
                flushing = asyncio.create_task(line.house.sessions.flush(agent.session))
                await held.reached()
                await line.store.inner.delete("t")
                held.open()
                with pytest.raises(SessionDeleted):
                    await flushing
            else:
                await line.store.inner.delete("t")
                await asyncio.sleep(0.3)
            await all_quiet()
            assert isinstance(agent.session.lost, SessionDeleted)
            assert agent.status == "closed"
            with pytest.raises(SessionDeleted):
                await line.house.sessions.create("t")


@virtual_time
async def test_a_heartbeat_finds_a_deleted_session():
    """DEL-02: with a heartbeat due: the running body is awaited, and it is the last thing that happens."""
    async with timeline(None) as line:
        held = Gate()
        line.house.adapter.unused.extend(House([[say("so"), gate(held)]]).adapter.unused)
        agent = await line.house.agents.create("t")
        waiting = asyncio.create_task(agent.wait(agent.send("go")))
        await held.reached.wait()
        await line.store.inner.delete("t")
        with pytest.raises(SessionDeleted):
            await waiting
        assert asyncio.get_running_loop().time() == 10
        assert types(agent.session)[-2:] == ["step/end", "turn/end{error SESSION_DELETED}"]
        assert agent.status == "closed"
        with pytest.raises(SessionDeleted):
            agent.send("again")


@virtual_time
async def test_a_closed_agent_takes_nothing_and_drops_nothing():
    """INB-16, INB-17: once its lease is being ended, a cancel leaves what is pending to whoever resumes it."""
    async with timeline(None) as line:
        held = Gate()
        line.house.adapter.unused.extend(House([gate(held)]).adapter.unused)
        agent = await line.house.agents.create("t")
        agent.send("first")
        await held.reached.wait()
        pending = agent.send("second")
        ending = line.store.hold("release")
        closing = asyncio.create_task(agent.close())
        await ending.reached()
        for is_closed in (False, True):
            for verb in (agent.send, agent.steer, agent.inject):
                with pytest.raises(AgentClosed):
                    verb("again")
            agent.cancel()
            if not is_closed:
                ending.open()
                await closing
        assert list(agent.session.state.pending) == [pending]
        assert types(agent.session)[-1] == "turn/end{aborted}"


async def test_a_fork_whose_lease_cannot_be_ended_is_a_fork(place: Place):
    """FRK-01: the child is stored; the process that made it can resume it at once."""
    for number, fault in enumerate(FAULTS):
        store = FaultyPersistence(place.persistence())
        house = House([say("one")], persistence=store)
        async with house.opened():
            agent = await house.agents.create(f"s{number}")
            await agent.wait(agent.send("go"))
            store.next("release", fault)
            child = await house.sessions.resume(await house.sessions.fork(agent.session.id))
            assert child.events == agent.session.events
            await house.sessions.release(child)

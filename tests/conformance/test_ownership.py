"""One live writer per session, seen from the stores of sessions that compete for it, on every kind of persistence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.llm.scripted import call, gate, say
from app.session import events as ev
from app.session.errors import PersistenceError, SessionExists, SessionFenced, SessionHeld, StoreRegressed
from app.session.ownership import Owner
from app.tools.schema import tool
from app.tools.types import ToolExecution
from tests.support.bodies import Bodies, calls
from tests.support.checkpoints import pend
from tests.support.faults import FaultyPersistence
from tests.support.gates import Gate
from tests.support.house import Clock, House, types
from tests.support.stores import Kind, Place
from tests.support.watching import errors, notices, results

OVER = -1.0
"""Seconds of a lease that has run out when it begins: nobody has to wait for a clock."""


@asynccontextmanager
async def two(place: Place, lease_s: float = 30.0, **parts: Any) -> AsyncIterator[tuple[House, House]]:
    """Two processes, as far as the store can tell: `anna`, whose leases last `lease_s`, and `bert`."""
    anna = House(persistence=place.persistence(), owner=Owner("anna", lease_s), **parts)
    bert = House(persistence=place.persistence(), owner=Owner("bert"), **parts)
    async with anna.opened(), bert.opened():
        yield anna, bert


async def test_each_owner_has_a_higher_epoch(place: Place):
    """OWN-01: new, released, and taken by force."""
    async with two(place) as (anna, bert):
        first = await anna.sessions.create("s")
        pend(first)
        await anna.sessions.release(first)
        second = await bert.sessions.resume("s")
        await bert.sessions.release(second)
        third = await anna.sessions.resume("s")
        fourth = await bert.sessions.resume("s", force=True)
        assert [one.epoch.number for one in (first, second, third, fourth)] == [1, 2, 3, 4]
        await bert.sessions.release(fourth)


async def test_a_held_session_is_refused_and_can_be_forced(place: Place):
    """OWN-02: the refusal names owner and seconds left; by force there is a new epoch, and the old owner is fenced."""
    async with two(place) as (anna, bert):
        held = await anna.sessions.create("s")
        pend(held)
        await anna.sessions.flush(held)
        with pytest.raises(SessionHeld) as refused:
            await bert.sessions.resume("s")
        assert refused.value.owner == "anna"
        assert 20 < (refused.value.seconds_left or 0) <= 30
        assert bert.sessions.live == ()
        taken = await bert.sessions.resume("s", force=True)
        assert taken.epoch.number == 2
        pend(held)
        with pytest.raises(SessionFenced):
            await anna.sessions.flush(held)
        await bert.sessions.release(taken)


@pytest.mark.parametrize("ended", ["run out and taken", "released and taken", "forced"])
async def test_an_old_owner_can_do_nothing(place: Place, ended: str):
    """OWN-04: neither append nor renew nor release: fenced each time, nothing written, the new lease as it was."""
    async with two(place, OVER if ended == "run out and taken" else 30.0) as (anna, bert):
        old = await anna.sessions.create("s")
        pend(old)
        await anna.sessions.flush(old)
        if ended == "released and taken":
            await anna.persistence.release("s", old.epoch)  # as by a release whose process never learnt of its end
        new = await bert.sessions.resume("s", force=ended == "forced")
        before = await bert.persistence.read("s")
        with pytest.raises(SessionFenced):
            await anna.persistence.renew("s", old.epoch)
        with pytest.raises(SessionFenced):
            await anna.persistence.release("s", old.epoch)
        pend(old)
        for _ in range(2):
            with pytest.raises(SessionFenced):
                await anna.sessions.flush(old)
        assert old.is_lost
        after = await bert.persistence.read("s")
        assert (after.events, after.ends, after.head) == (before.events, before.ends, before.head)
        assert (after.holder.epoch, after.holder.owner) == (2, "bert")
        assert after.holder.lease_left_s <= before.holder.lease_left_s
        pend(new)
        await bert.sessions.release(new)


async def test_the_same_name_again_is_another_claim(place: Place):
    """OWN-05: a new process of the same name takes the session, and the old one is fenced."""
    async with two(place, OVER) as (anna, _):
        old = await anna.sessions.create("s")
        pend(old)
        await anna.sessions.flush(old)
        again = House(persistence=place.persistence(), owner=Owner("anna"))
        async with again.opened():
            new = await again.sessions.resume("s")
            pend(old)
            with pytest.raises(SessionFenced):
                await anna.sessions.flush(old)
            await again.sessions.release(new)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_wrong_wall_clock_of_a_worker_changes_nothing(place: Place, hours: int):
    """OWN-10: an hour off, either way: what is held is held, what has run out can be taken."""
    clock = Clock()
    async with two(place, clock=clock) as (anna, bert):
        clock.now_ms += hours * 3_600_000
        for lease_s, is_held in ((30.0, True), (OVER, False)):
            anna.sessions.owner = Owner("anna", lease_s)
            session = await anna.sessions.create(f"s{lease_s}")
            pend(session)
            await anna.sessions.flush(session)
            if is_held:
                with pytest.raises(SessionHeld):
                    await bert.sessions.resume(session.id)
            else:
                await bert.sessions.release(await bert.sessions.resume(session.id))


async def test_what_is_live_here_cannot_be_had_again(place: Place):
    """OWN-13: resuming it is refused as held, creating it as existing; the turn that runs is not touched."""
    held = Gate()
    house = House([[say("one"), gate(held)]], persistence=place.persistence())
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        log = types(agent.session)
        for force in (False, True):
            with pytest.raises(SessionHeld) as refused:
                await house.sessions.resume("s", force=force)
            assert refused.value.seconds_left is None
        with pytest.raises(SessionExists):
            await house.sessions.create("s")
        assert types(agent.session) == log
        assert house.sessions.get("s") is agent.session
        held.open()
        assert (await agent.wait(prompt)).reason == "completed"
        assert agent.session.epoch.number == 1


async def test_an_id_is_reserved_while_it_is_resumed(place: Place):
    """OWN-14: creating or resuming it meanwhile is refused; afterwards there is one session of that id."""
    store = FaultyPersistence(place.persistence())
    house = House(persistence=store)
    async with house.opened():
        first = await house.sessions.create("s")
        pend(first)
        await house.sessions.release(first)
        held = store.hold("acquire")
        resuming = asyncio.create_task(house.sessions.resume("s"))
        await held.reached()
        with pytest.raises(SessionExists):
            await house.sessions.create("s")
        with pytest.raises(SessionHeld):
            await house.sessions.resume("s", force=True)
        assert house.sessions.get("s") is None
        held.open()
        session = await resuming
        assert house.sessions.get("s") is session
        assert (session.epoch.number, session.events) == (2, first.events)
        await house.sessions.release(session)


async def test_an_id_is_reserved_while_it_is_created(place: Place):
    """OWN-14: the same for two that create it at once."""
    store = FaultyPersistence(place.persistence())
    house = House(persistence=store)
    async with house.opened():
        held = store.hold("check_free")
        creating = asyncio.create_task(house.sessions.create("s"))
        await held.reached()
        with pytest.raises(SessionExists):
            await house.sessions.create("s")
        held.open()
        session = await creating
        assert house.sessions.get("s") is session


async def test_a_body_that_runs_on_after_a_take_over_is_the_last_thing_that_happens(place: Place):
    """OWN-06: what it returns is recorded in memory only; no later body, no request, and the stored log is bert's."""
    bodies = Bodies("c1")
    async with two(place, tools=[bodies.alone]) as (anna, bert):
        anna.adapter.unused.extend(House([calls("alone c1", "alone c2"), say("never")]).adapter.unused)
        agent = await anna.agents.create("s")
        seen = notices(agent.session)
        waiting = asyncio.create_task(agent.wait(agent.send("go")))
        await bodies.started("c1")
        taken = await bert.sessions.resume("s", force=True)
        assert results(taken) == [("c1", "TOOL_OUTCOME_UNKNOWN"), ("c2", "TOOL_NOT_STARTED")]
        bodies.let_go("c1")
        with pytest.raises(SessionFenced):
            await waiting
        assert bodies.order == ["c1 starts", "c1 ends"]
        assert results(agent.session)[0] == ("c1", "c1")
        assert types(agent.session)[-2:] == ["step/end", "turn/end{error SESSION_FENCED}"]
        assert [error.code for error in errors(seen)] == ["SESSION_FENCED"]
        assert len(anna.adapter.requests) == 1
        assert anna.sessions.live == ()
        assert (await bert.persistence.read("s")).events == taken.events
        await bert.sessions.release(taken)


async def test_a_body_of_three_leases_keeps_the_session(durable_place: Place):
    """OWN-08: nothing is appended meanwhile; each heartbeat is stored, and whoever tries then is refused."""
    store, other = FaultyPersistence(durable_place.persistence()), durable_place.persistence()

    @tool
    async def work() -> str:
        for _ in range(9):  # a third of a lease each
            renewal = store.hold("renew", after=True)
            await renewal.reached()
            with pytest.raises(SessionHeld):
                await other.acquire("s", Owner("other"))
            renewal.open()
        return "done"

    house = House([calls("work c1"), say("ok")], [work], store, Owner("test", 1.0), lease_margin_s=0.2)
    await other.open()
    async with house.agent() as agent:
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert results(agent.session) == [("c1", "done")]
        assert agent.session.epoch.number == 1
    await other.close()


async def test_a_session_that_was_lost_can_be_resumed_by_the_same_process(place: Place):
    """OWN-04: once the new owner has let it go; it goes on from what is stored, and the lost one stays lost."""
    async with two(place) as (anna, bert):
        lost = await anna.sessions.create("s")
        pend(lost, "kept")
        await anna.sessions.flush(lost)
        taken = await bert.sessions.resume("s", force=True)
        pend(lost, "never-stored")
        with pytest.raises(SessionFenced):
            await anna.sessions.flush(lost)
        with pytest.raises(SessionHeld):  # it is live here still, if of no use
            await anna.sessions.resume("s")
        await anna.sessions.release(lost)
        with pytest.raises(SessionHeld) as refused:
            await anna.sessions.resume("s")
        assert refused.value.owner == "bert"
        await bert.sessions.release(taken)
        again = await anna.sessions.resume("s")
        assert list(again.state.pending) == ["kept"]
        with pytest.raises(PersistenceError):
            lost.append(ev.InboxDiscarded(["never-stored"], "test"))
        assert again.events == taken.events
        await anna.sessions.release(again)


# --------------------------------------------------------------------------------- an older copy


async def test_a_store_that_holds_less_than_it_acknowledged_is_not_written(
    place: Place, new_place: Callable[[Kind], Place]
):
    """DIG-03: ten events acknowledged, then an older copy: told as that, nothing written, no effect, lost here."""
    bodies = Bodies()
    persistence, older = place.persistence(), new_place(place.kind)
    house = House([calls("alone c1"), say("never")], [bodies.alone], persistence)
    async with house.opened():
        agent = await house.agents.create("s")
        for _ in range(6):
            agent.inject("by the way")
        await house.sessions.flush(agent.session)
        await place.copy_to(older)
        for _ in range(4):
            agent.inject("by the way")
        await house.sessions.flush(agent.session)
        await older.copy_to(place)
        with pytest.raises(StoreRegressed) as told:
            await agent.wait(agent.send("go"))
        assert (told.value.acknowledged, told.value.found) == (10, "6")
        assert (house.adapter.requests, bodies.order) == ([], [])
        assert types(agent.session)[-2:] == ["step/end", "turn/end{error STORE_REGRESSED}"]
        assert len((await persistence.read("s")).events) == 6
        assert house.sessions.live == ()


async def test_a_store_without_the_session_has_regressed(place: Place, new_place: Callable[[Kind], Place]):
    """DIG-03: an empty copy is an older copy too."""
    persistence, older = place.persistence(), new_place(place.kind)
    house = House(persistence=persistence)
    async with house.opened():
        await place.copy_to(older)
        session = await house.sessions.create("s")
        pend(session)
        await house.sessions.flush(session)
        await older.copy_to(place)
        pend(session)
        with pytest.raises(StoreRegressed) as told:
            await house.sessions.flush(session)
        assert told.value.found == "nothing of it"
        assert await persistence.list(10) == []


# --------------------------------------------------------------------------------- threads


async def test_the_log_belongs_to_its_event_loops_thread():
    """RUL-09: append, the inbox verbs and cancel raise in another thread, and nothing has changed."""
    house = House()
    async with house.agent() as agent:
        agent.inject("by the way", id="m1")
        acts = [
            lambda: pend(agent.session),
            lambda: agent.send("go"),
            lambda: agent.steer("go"),
            lambda: agent.inject("go"),
            lambda: agent.discard(["m1"]),
            agent.cancel,
        ]
        raised: list[str] = []

        def try_all() -> None:
            for act in acts:
                try:
                    act()
                except RuntimeError as error:
                    raised.append(str(error))

        thread = threading.Thread(target=try_all)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert len(raised) == len(acts)
        assert all("event loop's thread" in text for text in raised)
        assert types(agent.session) == ["inbox/accepted"]


async def test_a_sync_body_may_inject_and_steer():
    """RUL-09: from its own thread, through its execution."""
    threads: list[bool] = []

    @tool
    def act(execution: ToolExecution) -> list[str]:
        threads.append(threading.current_thread() is threading.main_thread())
        return [execution.inject("noted"), execution.steer("hurry")]

    house = House([call("act", {}, id="c1"), say("done")], [act])
    async with house.agent() as agent:
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert threads == [False]
        ids = results(agent.session)[0][1]
        accepted = [event.data for event in agent.session.events if event.type == "inbox/accepted"]
        assert [(data["message"]["id"], data["placement"]) for data in accepted[1:]] == [
            (ids[0], "context"),
            (ids[1], "next_step"),
        ]

"""Take-overs between real processes: one that stands still past its lease, one that is dead, two that take turns."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from app.llm.scripted import Step as Answer
from app.llm.scripted import call, say
from app.session.batch import Batch
from app.session.errors import SessionFenced, SessionHeld
from app.session.ownership import Epoch, Owner, this_owner
from app.session.session import Session
from app.tools.schema import tool
from tests.support.checkpoints import pend
from tests.support.child import Child, for_ever, mark, told
from tests.support.faults import FaultyPersistence, Gate
from tests.support.house import House, types
from tests.support.stores import KINDS, Place, place_of
from tests.support.watching import at, data_of, is_balanced, results

LEASE_S, MARGIN_S = 1.0, 0.2


async def resume_when_free(house: House) -> Session:
    """Resume the session as soon as the lease of whoever holds it has run out."""
    while True:
        try:
            return await house.sessions.resume("s")
        except SessionHeld as held:
            await asyncio.sleep(max(held.seconds_left or 0, 0.01))


def report(house: House, session: Session, bodies: list[str]) -> None:
    """What a child says of itself at its end."""
    mark(
        json.dumps(
            {
                "types": types(session),
                "results": [code for _, code in results(session)],
                "requests": len(house.adapter.requests),
                "bodies": bodies,
                "missing": len(session) - session.durable,
            }
        )
    )


# --------------------------------------------------------------------------------- standing still


async def work(kind: str, directory: str, where: str, when: str) -> None:
    """Run by a child: a turn with two calls, held up in its first body, or at the write of a checkpoint."""
    logging.basicConfig(level=logging.ERROR)
    bodies: list[str] = []

    @tool
    async def act() -> str:
        bodies.append("act")
        if where == "body":
            mark("here")
            await told()
        return "done"

    store = FaultyPersistence(place_of(kind, directory).persistence())
    steps = [[call("act", {}, id="c1"), call("act", {}, id="c2")], say("never")]
    house = House(steps, [act], store, this_owner("anna", LEASE_S), lease_margin_s=MARGIN_S)
    async with house.opened():
        agent = await house.agents.create("s")
        agent.inject("by the way")
        await house.sessions.flush(agent.session)
        held = Gate(after=when == "after")
        at(agent.session, where, lambda: store.next("append", held))
        waiting = asyncio.create_task(agent.wait(agent.send("go")))
        if where != "body":
            await held.reached()
            mark("here")
            await told()
            held.open()
        try:
            await waiting
        except SessionFenced:
            report(house, agent.session, bodies)


async def stand_still(place: Place, where: str, when: str = "") -> tuple[dict[str, Any], str, Session]:
    """Stop a child there past its lease, run a turn, let the child go on: its report, what it logged, our session."""
    bert = House([say("I see")], persistence=place.persistence(), owner=Owner("bert"))
    async with bert.opened():
        with Child(f"{__name__}:work", *place.words, where, when) as child:
            child.wait_for("here")
            child.stop()
            with pytest.raises(SessionHeld) as refused:  # it is not dead
                await bert.sessions.resume("s")
            assert refused.value.owner == "anna"
            await bert.sessions.release(await resume_when_free(bert))
            agent = await bert.agents.resume("s")
            assert (await agent.wait(agent.send("what now?"))).reason == "completed"
            child.go_on()
            child.tell("go on")
            reported = json.loads(child.marked())
            code, logged = child.ended()
        assert code == 0
        assert is_balanced(agent.session)
        assert (await bert.persistence.read("s")).events == agent.session.events
        return reported, logged, agent.session


async def test_a_process_that_stood_still_in_a_body_does_nothing_more(durable_place: Place):
    """OWN-06: no other body and no request; its end is in memory only, and it says how much was never stored."""
    reported, logged, session = await stand_still(durable_place, "body")
    assert (reported["bodies"], reported["requests"]) == (["act"], 1)
    assert reported["types"][-2:] == ["step/end", "turn/end{error SESSION_FENCED}"]
    assert reported["results"][1] in ("ABORTED_BEFORE_DISPATCH", "CHECKPOINT_FAILED")
    assert reported["missing"] > 0
    assert "was taken over by another process" in logged
    assert f"{reported['missing']} events that were never stored" in logged
    assert results(session) == [("c1", "TOOL_OUTCOME_UNKNOWN"), ("c2", "TOOL_NOT_STARTED")]
    assert [data["reason"] for data in data_of(session, "turn/end")] == ["interrupted", "completed"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_process_that_stood_still_before_a_request_makes_none(durable_place: Place, when: str):
    """OWN-07: stopped in C1, before its write reached the store or after: the adapter is not opened."""
    reported, _, session = await stand_still(durable_place, "request/header", when)
    assert (reported["bodies"], reported["requests"]) == ([], 0)
    assert reported["types"][-2:] == ["step/end", "turn/end{error SESSION_FENCED}"]
    # Without C1's write there was no turn yet; the prompt itself was never stored, and never acknowledged.
    ends = ["interrupted", "completed"] if when == "after" else ["completed"]
    assert [data["reason"] for data in data_of(session, "turn/end")] == ends


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_process_that_stood_still_before_a_body_enters_none(durable_place: Place, when: str):
    """OWN-07: stopped in C2: no body is entered, and the model is told what is known of the call."""
    reported, _, session = await stand_still(durable_place, "tool/call", when)
    assert (reported["bodies"], reported["requests"]) == ([], 1)
    assert reported["results"][1] == "ABORTED_BEFORE_DISPATCH"
    assert reported["types"][-2:] == ["step/end", "turn/end{error SESSION_FENCED}"]
    known = ["TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"] if when == "after" else []
    assert [code for _, code in results(session)] == known


# --------------------------------------------------------------------------------- dead


async def hold(kind: str, directory: str) -> None:
    """Run by a child: it holds a session by a long lease."""
    house = House(persistence=place_of(kind, directory).persistence(), owner=this_owner("anna", 3600))
    async with house.opened():
        session = await house.sessions.create("s")
        pend(session, "m1")
        await house.sessions.flush(session)
        mark(f"{session.epoch.number} {session.epoch.token}")
        await for_ever()


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS if kind.knows_the_dead])
async def test_a_session_whose_process_was_killed_here_is_free_at_once(kind: str, tmp_path):
    """RUL-01: though its lease runs for an hour; the dead claim can do nothing."""
    place = place_of(kind, str(tmp_path))
    house = House(persistence=place.persistence(), owner=this_owner("bert"))
    async with house.opened():
        with Child(f"{__name__}:hold", *place.words) as child:
            number, token = child.marked().split()
            with pytest.raises(SessionHeld) as refused:
                await house.sessions.resume("s")
            assert (refused.value.seconds_left or 0) > 3000
            child.kill()
        session = await house.sessions.resume("s")
        assert session.epoch.number == 2
        dead = Epoch(int(number), token, Owner("anna", 3600))
        pend(session, "m2")
        next_batch = Batch(session.events[1:], (await house.persistence.read("s")).head, "caller")
        for late in (
            house.persistence.append(session.header, next_batch, dead),
            house.persistence.renew("s", dead),
            house.persistence.release("s", dead),
        ):
            with pytest.raises(SessionFenced):
                await late
        await house.sessions.flush(session)
        assert (await house.persistence.read("s")).events == session.events
        await house.sessions.release(session)


# --------------------------------------------------------------------------------- taking turns

ROUNDS, EACH = 10, 20


async def take_turns(kind: str, directory: str, name: str) -> None:
    """Run by a child: each time it is told to, it takes the session and appends to it; first it tries a request."""
    house = House(
        [Answer(say("never"), repeat=True)], persistence=place_of(kind, directory).persistence(), owner=this_owner(name)
    )
    async with house.opened():
        agent = None
        for turn in range(ROUNDS):
            await told()
            if agent is not None:  # it was taken over meanwhile, and nobody has said so
                try:
                    await agent.wait(agent.send("go"))
                except SessionFenced:
                    mark("fenced")
            agent = await house.agents.resume("s", force=True)
            for n in range(EACH):
                agent.inject("by the way", id=f"{name}-{turn * EACH + n}")
                await house.sessions.flush(agent.session)
            mark(f"{len(house.adapter.requests)} requests")
        await told()


async def test_two_processes_take_a_session_from_each_other(durable_place: Place):
    """APD-07: 200 appends each: no gap, each once, in order; the loser knows before its next request."""
    persistence = durable_place.persistence()
    house = House(persistence=persistence)
    async with house.opened():
        first = await house.sessions.create("s")
        pend(first, "first")
        await house.sessions.release(first)
        children = [Child(f"{__name__}:take_turns", *durable_place.words, name) for name in ("anna", "bert")]
        with children[0], children[1]:
            for turn in range(ROUNDS):
                for child in children:
                    child.tell("your turn")
                    if turn:
                        child.wait_for("fenced")
                    child.wait_for("0 requests")
        log = (await persistence.read("s")).events
        accepted = [event.data["message"]["id"] for event in log]
        assert [event.seq for event in log] == list(range(1 + 2 * ROUNDS * EACH))
        assert accepted[0] == "first"
        for name in ("anna", "bert"):
            ids = [message_id for message_id in accepted if message_id.startswith(name)]
            assert ids == [f"{name}-{n}" for n in range(ROUNDS * EACH)]


async def compete(kind: str, directory: str, name: str) -> None:
    """Run by a child: it appends 200 events, and takes the session back whenever it has lost it."""
    house = House(persistence=place_of(kind, directory).persistence(), owner=this_owner(name))
    async with house.opened():
        done = lost = 0
        while done < ROUNDS * EACH:
            session = await house.sessions.resume("s", force=True)
            try:
                while done < ROUNDS * EACH:
                    pend(session, f"{name}-{done}")
                    await house.sessions.flush(session)
                    done += 1
                    if done == 1:
                        mark("ready")
                        await told()
            except SessionFenced:
                lost += 1
                await house.sessions.release(session)
        mark(str(lost))


async def test_two_processes_fight_for_a_session(durable_place: Place):
    """APD-07: both take it by force, whenever they lose it: what each was told is stored is there once, in order."""
    persistence = durable_place.persistence()
    house = House(persistence=persistence)
    async with house.opened():
        first = await house.sessions.create("s")
        pend(first, "first")
        await house.sessions.release(first)
        children = [Child(f"{__name__}:compete", *durable_place.words, name) for name in ("anna", "bert")]
        with children[0], children[1]:
            for child in children:
                child.wait_for("ready")
            for child in children:
                child.tell("go")
            assert sum(int(child.marked()) for child in children) > 0  # both had it once before either went on
        log = (await persistence.read("s")).events
        accepted = [event.data["message"]["id"] for event in log]
        assert [event.seq for event in log] == list(range(1 + 2 * ROUNDS * EACH))
        for name in ("anna", "bert"):
            ids = [message_id for message_id in accepted if message_id.startswith(name)]
            assert ids == [f"{name}-{n}" for n in range(ROUNDS * EACH)]

"""Who may go on with a session: anybody, at once, when its owner is known to be dead; else by force only."""

from __future__ import annotations

import os
import signal

import pytest

from app.session.batch import Header
from app.session.errors import SessionHeld, Stored
from app.session.ownership import Epoch, Owner
from app.session.session import Session
from persistence.contract.base import contents
from persistence.contract.ownership import check_powerless
from persistence.contract.samples import Writer
from tests.crash import ledger
from tests.crash.child import LEDGER
from tests.crash.killing import held, killed_at
from tests.crash.recovering import bodies, recovering_house
from tests.crash.telling import told
from tests.support.house import House
from tests.support.stores import Place

UNKNOWN_AND_TWO_NOT_STARTED = [
    *("result c1 TOOL_OUTCOME_UNKNOWN", "result c2 TOOL_NOT_STARTED", "result c3 TOOL_NOT_STARTED"),
    *("step/end", "turn/end{interrupted}"),
]


async def resume_the_killed(house: House, place: Place) -> Session:
    """Resume the session without waiting for the lease of its dead owner; by force, but only where it takes that."""
    if place.force:
        with pytest.raises(SessionHeld):
            await house.sessions.resume("s")
    return await house.sessions.resume("s", force=place.force)


async def test_the_claim_of_a_killed_owner_ends_with_it_and_can_do_nothing(durable_place: Place):
    """RUL-01: its lease runs on; a store that knows the processes of its machine gives the session away at once."""
    killed_at(durable_place, "c1 entered", story="three calls")
    noted = next(note.details for note in ledger.read(durable_place.directory / LEDGER) if note.what == "claim")
    house = recovering_house(durable_place)
    async with house.opened():
        assert (await house.sessions.inspect("s")).holder.lease_left_s > 20
        session = await resume_the_killed(house, durable_place)
        assert told(session.closers) == UNKNOWN_AND_TWO_NOT_STARTED
        log = await house.persistence.read("s")
        dead = Writer(
            house.persistence,
            Header.read("s", log.header_text),
            Epoch(noted["number"], noted["token"], Owner("the child")),
            log.head,
            list(log.events),
        )
        await check_powerless(house.persistence, dead, Stored(2, log.next_seq, log.head))
        await house.sessions.release(session)


async def test_a_stopped_process_is_not_a_dead_one(durable_place: Place):
    """RUL-01: under SIGSTOP it keeps its claim, and after SIGKILL it has none where that can be known."""
    with held(durable_place, "c1 entered", story="three calls") as child:
        os.kill(child.pid, signal.SIGSTOP)
        house = recovering_house(durable_place)
        async with house.opened():
            with pytest.raises(SessionHeld):
                await house.sessions.resume("s")
            child.kill()
            session = await resume_the_killed(house, durable_place)
            assert told(session.closers) == UNKNOWN_AND_TWO_NOT_STARTED
            await house.sessions.release(session)


async def test_a_session_taken_from_a_living_owner_is_lost_there(durable_place: Place):
    """RUL-02 without its command, ST-15: refused with owner and seconds, taken by force; the old owner does no more.

    It was in a body when it was fenced. The body comes to its end, and then its turn does, in memory.
    """
    with held(durable_place, "c1 entered", story="three calls", play="lose") as child:
        house = recovering_house(durable_place)
        async with house.opened():
            before = await contents(house.persistence)
            with pytest.raises(SessionHeld) as refused:
                await house.sessions.resume("s")
            assert refused.value.owner == "the child"
            assert refused.value.seconds_left is not None
            assert 20 < refused.value.seconds_left <= 30
            assert await contents(house.persistence) == before
            agent = await house.agents.resume("s", force=True)
            assert told(agent.session.closers) == UNKNOWN_AND_TWO_NOT_STARTED
            assert (await agent.wait(agent.send("go on"))).reason == "completed"
            ours = await contents(house.persistence)
            child.go_on()
            assert await contents(house.persistence) == ours
    notes = ledger.read(durable_place.directory / LEDGER)
    assert bodies(durable_place) == {"c1": (1, 1)}
    assert [note.what for note in notes].count("request") == 1
    assert notes[-1].details["events"] == [
        *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header"),
        *("chunk*", "assistant/message", "tool/call", "result c1 c1 is done"),
        *("tool/call", "result c2 CHECKPOINT_FAILED", "tool/call", "result c3 ABORTED_BEFORE_DISPATCH"),
        *("step/end", "turn/end{error SESSION_FENCED}"),
    ]

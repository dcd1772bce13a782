"""What has to hold after every kill, checked in one place, by resuming the session for good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.agent.requests import rebuild_requests
from app.llm.scripted import Step, say
from app.llm.strict import check_provider_valid
from app.llm.types import LlmRequest
from app.messages import TextBlock, UserMessage
from app.session.errors import SessionNotFound
from app.session.inspection import Inspection
from app.session.ownership import this_owner
from app.session.record import SessionEvent
from app.session.session import Session
from persistence.contract.base import contents
from tests.crash import ledger
from tests.crash.child import LEDGER
from tests.crash.holding import Hold
from tests.crash.stories import World
from tests.support.house import House
from tests.support.stores import Place
from tests.support.watching import is_balanced

PROMPT = "go on"


@dataclass(frozen=True, slots=True)
class Recovered:
    """A session that has come through: what the kill had left of it, what was added, and what came after.

    `turns` are the numbers of the turns that ran after that, `requests` what the model was asked in them.
    """

    stored: tuple[SessionEvent, ...]
    closers: tuple[SessionEvent, ...]
    events: tuple[SessionEvent, ...]
    turns: list[int]
    requests: list[LlmRequest]
    bodies: dict[str, tuple[int, int]]
    was_held_s: float


async def recover(place: Place) -> Recovered:
    """Look at the session, resume it without waiting, resume it again, and run what is pending and one more turn.

    Fails unless it is gapless, legal and balanced, holds everything acknowledged and nothing that never happened,
    knows of every request and every body there was, is changed by the first resuming alone, and is good for any
    vendor. Raises SessionNotFound if nothing was stored.
    """
    notes = ledger.read(place.directory / LEDGER)
    house = recovering_house(place)
    async with house.opened():
        try:
            before = await contents(house.persistence)
            looked = await house.sessions.inspect("s")
        except SessionNotFound:
            assert ledger.acknowledged(notes) == 0
            raise
        assert await contents(house.persistence) == before
        _check_stored(looked, notes)
        session = await house.sessions.resume("s", force=place.force)
        balanced = session.events
        if not any(note.what == "asked" for note in ledger.read(place.directory / LEDGER)):
            assert (balanced, session.closers) == (looked.balanced, looked.closers)
        assert balanced == looked.events + session.closers
        check_whole(session)
        await house.sessions.release(session)
        closers = session.closers
        agent = await house.agents.resume("s")
        assert agent.session.events[: len(balanced)] == balanced
        assert agent.session.closers == ()
        assert len(agent.session) == agent.session.durable
        await agent.wait_idle()
        assert (await agent.wait(agent.send(PROMPT))).reason == "completed"
        check_whole(agent.session)
        events = agent.session.events
    _check_effects(events, notes)
    assert bodies(place) == ledger.bodies(notes), "a body ran again"
    return Recovered(
        stored=looked.events,
        closers=closers,
        events=events,
        turns=[event.data["turn"] for event in events[len(balanced) :] if event.type == "turn/start"],
        requests=house.adapter.requests,
        bodies=ledger.bodies(notes),
        was_held_s=looked.holder.lease_left_s,
    )


async def check_nothing_happened(place: Place) -> None:
    """Nothing was stored, so nothing left the process; the id is free in a store that opens."""
    assert {note.what for note in ledger.read(place.directory / LEDGER)} <= {"began", "claim", "append"}
    house = recovering_house(place)
    async with house.agent("s") as agent:
        assert (await agent.wait(agent.send("go"))).reason == "completed"


def recovering_house(place: Place) -> House:
    """A process that could run every tool, should it want to, and asks a model that never calls one."""
    world = World(Hold(), ledger.Ledger(place.directory / LEDGER))
    return House([Step(say("I see."), repeat=True)], world.tools, place.persistence(), this_owner("the next"))


def bodies(place: Place) -> dict[str, tuple[int, int]]:
    """By call id: how often its body was entered, and how often it took effect."""
    return ledger.bodies(ledger.read(place.directory / LEDGER))


def check_whole(session: Session) -> None:
    """Gapless and balanced, and a vendor takes it."""
    assert [event.seq for event in session.events] == list(range(len(session)))
    assert is_balanced(session)
    check_provider_valid([*session.messages, UserMessage((TextBlock(PROMPT),))])


def _check_stored(looked: Inspection, notes: Sequence[ledger.Note]) -> None:
    """What is stored is a beginning of what was live, and holds what was acknowledged."""
    assert looked.problem is None
    stored = [ledger.digest(event) for event in looked.events]
    live: list[str] = []
    for pid in dict.fromkeys(note.pid for note in notes):
        own = [note for note in notes if note.pid == pid]
        ledger.check_order(own)
        live, count = ledger.appended(own), ledger.acknowledged(own)
        assert len(stored) >= count, "what was acknowledged is missing"
        known = min(count, len(live))
        assert stored[:known] == live[:known], "what was acknowledged is not what is there"
    if live:  # that of the last process, if it got so far as to have a session
        assert stored == live[: len(stored)]


def _check_effects(events: Sequence[SessionEvent], notes: Sequence[ledger.Note]) -> None:
    """The log knows of everything that left the process; nothing happened twice."""
    called = {event.data["call_id"] for event in events if event.type == "tool/call"}
    nested = {event.data["call_id"] for event in events if event.type == "tool/nested"}
    for call_id, (entered, acted) in ledger.bodies(notes).items():
        assert call_id.partition(":")[0] in called
        assert (entered, acted) in ((1, 0), (1, 1))
    assert nested <= ledger.bodies(notes).keys()
    rebuilt = {ledger.fingerprint(request) for request in rebuild_requests("s", events)}
    assert {note.details["fingerprint"] for note in notes if note.what == "request"} <= rebuilt

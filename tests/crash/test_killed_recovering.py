"""Killed again while it is being recovered: whoever comes next finds the same, and does the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from tests.crash import ledger
from tests.crash.child import LEDGER, Part
from tests.crash.killing import Process, killed_at
from tests.crash.recovering import Recovered, recover, recovering_house
from tests.crash.telling import told
from tests.support.stores import Kind, Place

REMEMBERED = ["result c2 c2 is remembered", "result c3 TOOL_NOT_STARTED", "step/end", "turn/end{interrupted}"]


@pytest.fixture
def copied(durable_place: Place, new_place: Callable[[Kind], Place]) -> Callable[[], Awaitable[Place]]:
    """Each call gives another place that holds what `durable_place` holds now."""

    async def copy() -> Place:
        other = new_place(durable_place.kind)
        await durable_place.copy_to(other)
        return other

    return copy


def asked(place: Place) -> list[str]:
    """The calls that a tool was asked about, in order."""
    return [note.details["call_id"] for note in ledger.read(place.directory / LEDGER) if note.what == "asked"]


async def test_a_recovery_killed_at_any_of_its_points_is_done_by_the_next(
    durable_place: Place, copied: Callable[[], Awaitable[Place]]
):
    """E2E-12: at every point of the claim that closes the turn; the closers are the same, and stand there once."""
    killed_at(durable_place, "c2 acted", story="three calls")
    left: list[Recovered] = []
    found_closed = 0
    for point in count(1):
        place = await copied()
        with Process(Part("resume", place.words, hold=f"point {point}")) as child:
            if not child.is_held():
                break
            child.kill()
        recovered = await recover(place)
        found_closed += not recovered.closers
        left.append(recovered)
    plain = await recover(durable_place)
    balanced = plain.stored + plain.closers
    assert told(plain.closers) == [
        *("result c2 TOOL_OUTCOME_UNKNOWN", "result c3 TOOL_NOT_STARTED", "step/end", "turn/end{interrupted}")
    ]
    assert {recovered.stored + recovered.closers for recovered in left} == {balanced}
    assert {recovered.bodies == plain.bodies for recovered in left} == {True}
    assert 0 < found_closed < len(left), "some were killed before the closers were stored, some after"


async def test_a_claim_whose_process_was_killed_while_it_asked_leads_to_the_same_closers(
    durable_place: Place, copied: Callable[[], Awaitable[Place]]
):
    """E2E-11, K15, RCN-05: the epoch was stored, no closer was; the tool is asked again, and its answer stands."""
    killed_at(durable_place, "c2 acted", story="remembered")
    plain = await recover(await copied())
    assert told(plain.closers) == REMEMBERED
    killed_at(durable_place, "c2 asked", play="resume")
    house = recovering_house(durable_place)
    async with house.opened():
        looked = await house.sessions.inspect("s")
    assert looked.holder.epoch == 2
    assert looked.events == plain.stored
    recovered = await recover(durable_place)
    assert recovered.stored + recovered.closers == plain.stored + plain.closers
    assert asked(durable_place) == ["c2", "c2"]


async def test_killed_before_the_answers_are_stored_the_tool_is_asked_again(
    durable_place: Place, copied: Callable[[], Awaitable[Place]]
):
    """RCN-05: the answer was there, the closers were not."""
    killed_at(durable_place, "c2 acted", story="remembered")
    plain = await recover(await copied())
    killed_at(durable_place, "before recovery 1", play="resume")
    recovered = await recover(durable_place)
    assert recovered.stored + recovered.closers == plain.stored + plain.closers
    assert told(recovered.closers) == REMEMBERED
    assert asked(durable_place) == ["c2", "c2"]


async def test_killed_after_the_answers_are_stored_nobody_is_asked_again(durable_place: Place):
    """RCN-05: the closers stand as they were written."""
    killed_at(durable_place, "c2 acted", story="remembered")
    killed_at(durable_place, "after recovery 1", play="resume")
    recovered = await recover(durable_place)
    assert recovered.closers == ()
    assert told(recovered.stored[-4:]) == REMEMBERED
    assert asked(durable_place) == ["c2"]


async def test_a_session_may_be_killed_in_turn_after_turn(durable_place: Place):
    """Every crash adds its own closers, and the log is as good as before."""
    killed_at(durable_place, "c1 acted", story="one call")
    for turn in range(2, 7):
        killed_at(durable_place, "mid-stream", play="go_on")
        house = recovering_house(durable_place)
        async with house.opened():
            looked = await house.sessions.inspect("s")
        assert [event.data["turn"] for event in looked.events if event.type == "turn/start"] == list(range(1, turn + 1))
        assert told(looked.closers) == ["step/end", "turn/end{interrupted}"]
    recovered = await recover(durable_place)
    assert recovered.turns == [7]
    assert [event.data["reason"] for event in recovered.events if event.type == "turn/end"] == [
        *["interrupted"] * 6,
        "completed",
    ]

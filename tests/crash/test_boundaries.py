"""Killed at each boundary of a turn: whatever had been promised by then is there, and the session goes on at once."""

from __future__ import annotations

import pytest

from app.messages import TextBlock, ToolMessage, UserMessage
from app.session.errors import SessionNotFound
from app.session.recovery import SIDE_EFFECT_TEXT
from tests.crash.killing import held, killed_at
from tests.crash.recovering import PROMPT, bodies, recover, recovering_house
from tests.crash.telling import told
from tests.support.house import shorten
from tests.support.stores import Place

OPENED = ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header"]
CALLED = [*OPENED, "chunk*", "assistant/message", "tool/call"]
ANSWERED = [*CALLED, "tool/result"]
ASKED_AGAIN = [*ANSWERED, "step/end", "step/start"]
ANSWERED_AGAIN = [*ASKED_AGAIN, "chunk*", "assistant/message"]
STEP_AND_TURN = ["step/end", "turn/end{interrupted}"]
UNKNOWN = ["result c1 TOOL_OUTCOME_UNKNOWN", *STEP_AND_TURN]
NEW_TURN = [
    *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header"),
    *("chunk*", "assistant/message", "step/end", "turn/end{completed}"),
]

BOUNDARIES = {
    "after request 1": (OPENED, STEP_AND_TURN, {}),
    "request 1 opened": (OPENED, STEP_AND_TURN, {}),
    "before tool 1": (OPENED, STEP_AND_TURN, {}),
    "after tool 1": (CALLED, UNKNOWN, {}),
    "c1 admitted": (CALLED, UNKNOWN, {}),
    "c1 entered": (CALLED, UNKNOWN, {"c1": (1, 0)}),
    "c1 acted": (CALLED, UNKNOWN, {"c1": (1, 1)}),
    "c1 ended": (CALLED, UNKNOWN, {"c1": (1, 1)}),
    "before post-step 1": (CALLED, UNKNOWN, {"c1": (1, 1)}),
    "after post-step 1": (ANSWERED, STEP_AND_TURN, {"c1": (1, 1)}),
    "before request 2": (ANSWERED, STEP_AND_TURN, {"c1": (1, 1)}),
    "request 2 opened": (ASKED_AGAIN, STEP_AND_TURN, {"c1": (1, 1)}),
    "before post-step 2": (ASKED_AGAIN, STEP_AND_TURN, {"c1": (1, 1)}),
    "after post-step 2": (ANSWERED_AGAIN, STEP_AND_TURN, {"c1": (1, 1)}),
    "before final 1": (ANSWERED_AGAIN, STEP_AND_TURN, {"c1": (1, 1)}),
    "after final 1": ([*ANSWERED_AGAIN, "step/end", "turn/end{completed}"], [], {"c1": (1, 1)}),
}


@pytest.mark.parametrize("boundary", BOUNDARIES)
async def test_a_session_killed_at_a_boundary_goes_on_at_once(durable_place: Place, boundary: str):
    """E2E-01, E2E-07, E2E-08, E2E-09, RUL-01: what is stored, what closes it, how often the body ran and acted.

    `recover` checks the rest: a second resuming changes nothing, a vendor takes it, nothing acknowledged is missing.
    """
    killed_at(durable_place, boundary, story="one call")
    stored, closers, ran = BOUNDARIES[boundary]
    recovered = await recover(durable_place)
    assert shorten(recovered.stored) == stored
    assert told(recovered.closers) == closers
    assert shorten(recovered.events)[len(stored) + len(closers) :] == NEW_TURN
    assert recovered.turns == [2]
    assert recovered.bodies == ran
    assert recovered.was_held_s > 20, "nobody had to wait for its lease of 30 s to run out"


async def test_mid_stream_only_what_was_before_the_request_is_there(durable_place: Place):
    """E2E-01: killed while the answer streams; the model is not shown half of it."""
    killed_at(durable_place, "mid-stream")
    recovered = await recover(durable_place)
    assert shorten(recovered.stored) == OPENED
    assert told(recovered.closers) == STEP_AND_TURN
    assert recovered.requests[-1].messages == (UserMessage((TextBlock("go"),)), UserMessage((TextBlock(PROMPT),)))


async def test_killed_in_the_very_first_checkpoint_there_is_no_session(durable_place: Place):
    """K0: its write had not begun, nothing had left the process, and the id is free."""
    killed_at(durable_place, "before request 1", story="one call")
    with pytest.raises(SessionNotFound):
        await recover(durable_place)
    house = recovering_house(durable_place)
    async with house.agent("s") as agent:
        assert (await agent.wait(agent.send("go"))).reason == "completed"
    assert bodies(durable_place) == {}


async def test_killed_in_a_later_request_checkpoint_the_turns_before_it_are_whole(durable_place: Place):
    """K12: the second prompt had been promised to nobody, and is gone; the session is as the first turn left it."""
    killed_at(durable_place, "before request 2", story="two turns")
    recovered = await recover(durable_place)
    assert shorten(recovered.stored) == NEW_TURN
    assert recovered.closers == ()
    assert recovered.turns == [2]


async def test_the_model_is_told_that_the_outcome_is_unknown(durable_place: Place):
    """E2E-03, E2E-05: the effect is there once; the next request has the call, its unknown result, and the prompt."""
    killed_at(durable_place, "c1 acted", story="one call")
    recovered = await recover(durable_place)
    go, answer, result, prompt = recovered.requests[-1].messages
    assert go == UserMessage((TextBlock("go"),))
    assert [block.id for block in answer.content] == ["c1"]  # type: ignore[union-attr]
    assert result == ToolMessage("c1", True, f"Error: {SIDE_EFFECT_TEXT}")
    assert prompt == UserMessage((TextBlock(PROMPT),))
    assert bodies(durable_place) == {"c1": (1, 1)}


async def test_resuming_and_looking_again_add_nothing(durable_place: Place):
    """E2E-04: looked at before, resumed, killed as it stands, and resumed by two more processes."""
    killed_at(durable_place, "c1 acted", story="one call")
    house = recovering_house(durable_place)
    async with house.opened():
        looked = await house.sessions.inspect("s")
    logs = []
    for _ in range(2):
        killed_at(durable_place, "resumed", play="resume")
        async with house.opened():
            again = await house.sessions.inspect("s")
        assert again.closers == ()
        logs.append(again.events)
    assert logs == [looked.balanced, looked.balanced]
    recovered = await recover(durable_place)
    assert recovered.closers == ()
    assert recovered.stored == looked.balanced


async def test_under_turn_end_only_the_acknowledged_prompt_is_there_and_runs(durable_place: Place):
    """E2E-06: killed in the adapter; the prompt is pending, and gets its turn when the session is resumed."""
    killed_at(durable_place, "mid-stream", story="turn end")
    recovered = await recover(durable_place)
    assert shorten(recovered.stored) == ["inbox/accepted"]
    assert recovered.closers == ()
    assert recovered.turns == [1, 2]
    assert recovered.requests[0].messages == (UserMessage((TextBlock("go"),)),)


async def test_results_that_were_durable_are_kept_byte_for_byte(durable_place: Place):
    """E2E-10, POL-35: killed in the third body; the results of the first two stand, only the third is unknown."""
    with held(durable_place, "c3 entered", story="three calls") as child:
        house = recovering_house(durable_place)
        async with house.opened():
            beside = await house.sessions.inspect("s")
        child.kill()
    recovered = await recover(durable_place)
    assert recovered.stored == beside.events
    assert recovered.events[: len(beside.events)] == beside.events
    results = [event for event in recovered.stored if event.type == "tool/result"]
    assert told(results) == ["result c1 c1 is done", "result c2 c2 is done"]
    assert told(recovered.closers) == ["result c3 TOOL_OUTCOME_UNKNOWN", *STEP_AND_TURN]
    assert recovered.bodies == {"c1": (1, 1), "c2": (1, 1), "c3": (1, 0)}


async def test_what_nobody_flushed_is_not_there(durable_place: Place):
    """WB-16: without write-behind and without a flush nothing of it is stored."""
    killed_at(durable_place, "appended", play="forget")
    with pytest.raises(SessionNotFound):
        await recover(durable_place)

"""Killed with each kind of event as the last durable one: what recovery adds, and what it lets run again."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.crash.child import Part
from tests.crash.killing import Process, killed_at
from tests.crash.recovering import Recovered, recover
from tests.crash.telling import told
from tests.support.house import shorten
from tests.support.stores import Place

ACCEPTED = ["inbox/accepted"]
TAKEN = [*ACCEPTED, "turn/start", "user/message"]
STARTED = [*TAKEN, "step/start"]
ASKED = [*STARTED, "request/header"]
STREAMED = [*ASKED, "chunk*"]
SAID = [*STREAMED, "assistant/message"]
TURN = ["turn/end{interrupted}"]
STEP_AND_TURN = ["step/end", *TURN]


def unknown(*calls: str) -> list[str]:
    return [f"result {call} TOOL_OUTCOME_UNKNOWN" for call in calls]


def not_started(*calls: str) -> list[str]:
    return [f"result {call} TOOL_NOT_STARTED" for call in calls]


@dataclass(frozen=True)
class Point:
    """`turns` are those that run after the recovery: one for each pending prompt, and the one for the new prompt."""

    story: str
    hold: str
    stored: list[str]
    closers: list[str]
    turns: list[int] = field(default_factory=lambda: [2])


POINTS = {
    "K1": Point("acknowledged", "after caller 1", ACCEPTED, [], [1, 2]),
    "K3": Point("text, each event", "stored user/message 1", TAKEN, TURN),
    "K4 step/start": Point("text, each event", "stored step/start 1", STARTED, STEP_AND_TURN),
    "K4 request/header": Point("text, each event", "stored request/header 1", ASKED, STEP_AND_TURN),
    "K4 assistant/chunk": Point("text, each event", "mid-stream", STREAMED, STEP_AND_TURN),
    "K4 written behind": Point("half a text, written behind", "stored assistant/chunk 1", STREAMED, STEP_AND_TURN),
    "K5": Point("text, each event", "stored assistant/message 1", SAID, STEP_AND_TURN),
    "K5 interrupted": Point("stopped, each event", "stored assistant/message 1", SAID, STEP_AND_TURN),
    "K6": Point(
        "three calls, each event",
        "stored assistant/message 1",
        SAID,
        [*not_started("c1", "c2", "c3"), *STEP_AND_TURN],
    ),
    "K7 body not entered": Point(
        "three calls",
        "after tool 1",
        [*SAID, "tool/call"],
        [*unknown("c1"), *not_started("c2", "c3"), *STEP_AND_TURN],
    ),
    "K7 body half done": Point(
        "three calls",
        "c1 entered",
        [*SAID, "tool/call"],
        [*unknown("c1"), *not_started("c2", "c3"), *STEP_AND_TURN],
    ),
    "K7 body done": Point(
        "three calls",
        "c1 ended",
        [*SAID, "tool/call"],
        [*unknown("c1"), *not_started("c2", "c3"), *STEP_AND_TURN],
    ),
    "K8": Point(
        "three calls",
        "c2 acted",
        [*SAID, "tool/call", "tool/result", "tool/call"],
        [*unknown("c2"), *not_started("c3"), *STEP_AND_TURN],
    ),
    "K9": Point("side by side", "c1 acted", [*SAID, "tool/call", "tool/call"], [*unknown("c1", "c2"), *STEP_AND_TURN]),
    "K10": Point("one call", "after post-step 1", [*SAID, "tool/call", "tool/result"], STEP_AND_TURN),
    "K10 in its checkpoint": Point(
        "one call", "before post-step 1", [*SAID, "tool/call"], [*unknown("c1"), *STEP_AND_TURN]
    ),
    "K10 contexts": Point(
        "injected",
        "after post-step 1",
        [*SAID, "tool/call", "inbox/accepted", "tool/result", "user/message"],
        STEP_AND_TURN,
    ),
    "K11 step/end": Point("text, each event", "stored step/end 1", [*SAID, "step/end"], TURN),
    "K11 llm/retry": Point("retried, each event", "stored llm/retry 1", [*ASKED, "step/end", "llm/retry"], TURN),
    "K12": Point("text", "after final 1", [*SAID, "step/end", "turn/end{completed}"], []),
    "K13": Point(
        "nested", "stored tool/nested 1", [*SAID, "tool/call", "tool/nested"], [*unknown("c1"), *STEP_AND_TURN]
    ),
    "K14": Point(
        "steered", "c1 entered", [*SAID, "tool/call", "inbox/accepted"], [*unknown("c1"), *STEP_AND_TURN], [2, 3]
    ),
    "K16": Point(
        "stopped in c1, each event",
        "stored tool/result 2",
        [*SAID, "tool/call", "tool/result", "tool/call", "tool/result"],
        [*not_started("c3"), *STEP_AND_TURN],
    ),
}


async def recovered_from(place: Place, point: Point) -> Recovered:
    killed_at(place, point.hold, story=point.story)
    recovered = await recover(place)
    assert shorten(recovered.stored) == point.stored
    assert told(recovered.closers) == point.closers
    assert recovered.turns == point.turns
    return recovered


@pytest.mark.parametrize("name", POINTS)
async def test_every_crash_point_is_closed_as_the_table_says(durable_place: Place, name: str):
    """E2E-11: K1 and K3 to K16 but for K15, each followed by a new turn."""
    await recovered_from(durable_place, POINTS[name])


async def test_an_announced_message_that_no_turn_took_is_pending_again(durable_place: Place):
    """E2E-11, K2: a log that ends with `turn/start`; the turn is closed, its message gets the next one."""
    killed_at(durable_place, "after import 1", play="begin")
    recovered = await recover(durable_place)
    assert shorten(recovered.stored) == ["inbox/accepted", "turn/start"]
    assert told(recovered.closers) == TURN
    assert recovered.turns == [2, 3]
    assert [event.data["input"] for event in recovered.events if event.type == "turn/start"][:2] == [["m1"], ["m1"]]


async def test_a_prompt_whose_turn_was_cut_short_is_history_and_does_not_run_again(durable_place: Place):
    """K3, INB-31: the only turn that runs is that of the new prompt; the model sees both."""
    recovered = await recovered_from(durable_place, POINTS["K3"])
    asked = [message.content[0].text for message in recovered.requests[0].messages]  # type: ignore[union-attr]
    assert asked == ["go", "go on"]


async def test_half_an_answer_stays_in_the_log_and_out_of_the_history(durable_place: Place):
    """K4: the chunks are kept; the model is not shown them."""
    recovered = await recovered_from(durable_place, POINTS["K4 assistant/chunk"])
    assert [event.data["chunk"]["text"] for event in recovered.stored if event.type == "assistant/chunk"] == ["Hello"]
    assert [type(message).__name__ for message in recovered.requests[0].messages] == ["UserMessage", "UserMessage"]


async def test_an_interrupted_answer_counts_like_any_other(durable_place: Place):
    """K5: what was visible when the turn was cancelled is an answer, whatever came to pass after it."""
    recovered = await recovered_from(durable_place, POINTS["K5 interrupted"])
    _, answer, _ = recovered.requests[0].messages
    assert [block.text for block in answer.content] == ["Hello"]  # type: ignore[union-attr]


async def test_calls_that_ran_side_by_side_are_both_unknown(durable_place: Place):
    """K9: the second had ended and taken effect before the first; results are only recorded in order."""
    recovered = await recovered_from(durable_place, POINTS["K9"])
    assert recovered.bodies == {"c2": (1, 1), "c1": (1, 1)}


async def test_what_nested_calls_left_is_untouched(durable_place: Place):
    """K13: the nested call has its record, the outer one is unknown."""
    recovered = await recovered_from(durable_place, POINTS["K13"])
    assert recovered.bodies == {"c1:1": (1, 1)}
    assert [event.data["call_id"] for event in recovered.events if event.type == "tool/nested"] == ["c1:1"]


async def test_steering_that_was_acknowledged_gets_a_turn_of_its_own(durable_place: Place):
    """K14: the turn that it was meant for is closed; it wakes the next."""
    recovered = await recovered_from(durable_place, POINTS["K14"])
    assert [event.data["message"]["content"] for event in recovered.events if event.type == "user/message"] == [
        *("go", "and more", "go on")
    ]


@pytest.mark.parametrize("answered", [1, 2, 3])
async def test_a_cancelled_batch_is_closed_where_it_was_cut(durable_place: Place, answered: int):
    """K16: cancelled in the first body, and killed after so many results; the rest was never started."""
    killed_at(durable_place, f"stored tool/result {answered}", story="stopped in c1, each event")
    recovered = await recover(durable_place)
    results = [event for event in recovered.stored if event.type == "tool/result"]
    assert (
        told(results)
        == [*("result c1 ABORTED", "result c2 ABORTED_BEFORE_DISPATCH", "result c3 ABORTED_BEFORE_DISPATCH")][:answered]
    )
    assert told(recovered.closers) == [*not_started(*["c2", "c3"][answered - 1 :]), *STEP_AND_TURN]
    assert recovered.bodies == {"c1": (1, 1)}


def test_no_write_parts_a_skipped_call_from_its_result(durable_place: Place):
    """K16: though every group is written for itself, none but the first ends with a call."""
    with Process(Part("tell", durable_place.words, "stopped in c1, each event", "stored tool/call 2")) as child:
        assert not child.is_held()


async def test_an_acknowledged_context_waits_for_the_next_turn(durable_place: Place):
    """INB-04: killed when idle; it is in the input of the new turn, before the prompt."""
    killed_at(durable_place, "acknowledged", play="inject")
    recovered = await recover(durable_place)
    assert shorten(recovered.stored) == ["inbox/accepted"]
    assert recovered.turns == [1]
    asked = [message.content[0].text for message in recovered.requests[0].messages]  # type: ignore[union-attr]
    assert asked == ["by the way", "go on"]


async def test_an_acknowledged_prompt_runs_once(durable_place: Place):
    """K1, INB-25: killed before its turn had begun to be stored."""
    recovered = await recovered_from(durable_place, POINTS["K1"])
    taken = [event.data["message"]["content"] for event in recovered.events if event.type == "user/message"]
    assert taken == ["go", "go on"]

"""How a turn runs: what is recorded, in which order, and what each request holds."""

from __future__ import annotations

import pytest

from app.agent.retry import Fail
from app.agent.step import Step
from app.llm.scripted import call, gate, reason, say
from app.messages import (
    AssistantMessage,
    Finish,
    ModelRef,
    TextBlock,
    ToolCallBlock,
    ToolMessage,
    UserMessage,
)
from app.middleware import Named
from app.session.history import History, derive_messages
from app.session.record import parse
from app.tools.schema import tool
from app.tools.types import ToolExecution
from tests.support.gates import Gate
from tests.support.house import House, types
from tests.support.watching import at, data_of, errors, notices, writes

MODEL = ModelRef("script", "test")
PLAIN = [
    *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header"),
    *("chunk*", "assistant/message", "step/end", "turn/end{completed}"),
]
LATER = [kind for kind in PLAIN if kind != "request/header"]


def user(text: str) -> UserMessage:
    return UserMessage((TextBlock(text),))


def assistant(*blocks: TextBlock | ToolCallBlock) -> AssistantMessage:
    return AssistantMessage(blocks, MODEL)


@tool
async def act() -> str:
    return "done"


async def test_a_plain_answer_is_a_turn_of_one_step():
    """LOOP-01: the whole log of one prompt that is answered by text; the history is the prompt and the answer."""
    house = House(steps=[say("Hello", chunks=3)])
    async with house.agent() as agent:
        await agent.wait(agent.send("Hi"))
        assert types(agent.session) == PLAIN
        assert derive_messages(agent.session.events) == (user("Hi"), assistant(TextBlock("Hello")))


async def test_a_call_and_its_result_stand_next_to_each_other_in_the_next_request():
    """LOOP-02: the second request has the call and its result under one id, directly after each other."""
    house = House(steps=[call("act", {}, id="c1"), say("done")], tools=[act])
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert house.adapter.requests[1].messages == (
            user("go"),
            assistant(ToolCallBlock("c1", "act", "{}")),
            ToolMessage("c1", False, "done"),
        )


async def test_what_bodies_and_listeners_put_into_the_inbox_comes_after_all_results():
    """LOOP-03: contexts first, then steering, at the end of the step; what a listener injects waits for the next."""

    @tool
    async def note(execution: ToolExecution) -> str:
        execution.inject("noted")
        return "ok"

    @tool
    async def hurry(execution: ToolExecution) -> str:
        execution.steer("hurry")
        return "ok"

    async def remark(step: Step) -> None:
        if step.step == 1:
            step.inject("a remark")

    house = House(
        steps=[[call("note", {}, id="c1"), call("hurry", {}, id="c2")], say("fine")],
        tools=[note, hurry],
        listeners_above=[Named("remark", remark)],
    )
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "chunk*"),
            *("assistant/message", "tool/call", "inbox/accepted", "tool/result", "tool/call", "inbox/accepted"),
            *("tool/result", "user/message", "user/message", "inbox/accepted", "step/end"),
            *("user/message", "step/start", "chunk*", "assistant/message", "step/end", "turn/end{completed}"),
        ]
        taken = [(data["message"]["content"], data["placement"]) for data in data_of(agent.session, "user/message")]
        assert taken == [
            ("go", "next_turn"),
            ("noted", "context"),
            ("hurry", "next_step"),
            ("a remark", "context"),
        ]


@pytest.mark.parametrize(
    "content",
    [[], [reason("hmm")]],
    ids=["nothing", "only reasoning"],
)
async def test_an_answer_without_text_or_calls_is_a_failed_request(content):
    """LOOP-21: it makes no message; the failure EMPTY_RESPONSE is offered to the retry policy."""
    offered: list[str] = []

    async def retry(failure, earlier, turn, step, signal):
        offered.append(failure.code)
        return Fail()

    house = House(steps=[[*content, Finish("stop")]], retry=retry)
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert offered == ["EMPTY_RESPONSE"]
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "chunk*", "step/end"),
            "turn/end{error EMPTY_RESPONSE}",
        ]


async def test_a_full_answer_runs_no_tool():
    """LOOP-17: at `max_tokens` the call is dropped from the message, the step gets its listeners and its checkpoint."""
    told: list[int] = []

    async def listen(step: Step) -> None:
        told.append(step.step)

    house = House(
        steps=[[say("half"), call("act", {}, id="c1"), Finish("max_tokens")]],
        tools=[act],
        listeners_above=[Named("listen", listen)],
    )
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert types(agent.session) == [*PLAIN[:-1], "turn/end{max_tokens}"]
        assert data_of(agent.session, "assistant/message")[0]["content"] == [{"type": "text", "text": "half"}]
        assert told == [1]
        assert await writes(house.persistence) == ["request", "post-step", "final"]


async def test_an_answer_that_is_full_before_it_began_is_a_message_that_history_skips():
    """LOOP-18: `max_tokens` with nothing is an empty message, and the model never sees it."""
    house = House(steps=[Finish("max_tokens"), say("now")])
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert types(agent.session) == [*PLAIN[:-1], "turn/end{max_tokens}"]
        assert data_of(agent.session, "assistant/message")[0]["content"] == []
        await agent.wait(agent.send("again"))
        assert house.adapter.requests[1].messages == (user("go"), user("again"))


async def test_a_turn_that_was_full_once_goes_on_for_steering_and_says_so_at_its_end():
    """LOOP-19: two steps and `max_tokens`; the next turn knows nothing of it."""
    held = Gate()
    house = House(steps=[[say("half"), gate(held), Finish("max_tokens")], say("whole"), say("next")])
    async with house.agent() as agent:
        first = agent.send("go")
        await held.reached.wait()
        agent.steer("shorter")
        held.open()
        assert (await agent.wait(first)).reason == "max_tokens"
        await agent.wait(agent.send("again"))
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "chunk*"),
            *("inbox/accepted", "chunk*", "assistant/message", "user/message", "step/end"),
            *("step/start", "chunk*", "assistant/message", "step/end", "turn/end{max_tokens}"),
            *LATER,
        ]


async def test_a_listener_below_the_checkpoint_that_raises_fails_the_turn_and_nothing_more():
    """LOOP-30: the step is durable and closed, no further request is made, and the next prompt runs."""

    async def fail(step: Step) -> None:
        if step.turn == 1:
            raise RuntimeError("no room")

    house = House(steps=[call("act", {}, id="c1"), say("next")], tools=[act], listeners_below=[Named("index", fail)])
    async with house.agent() as agent:
        first = await agent.wait(agent.send("go"))
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "chunk*"),
            *("assistant/message", "tool/call", "tool/result", "step/end", "turn/end{error LISTENER_FAILED}"),
        ]
        assert await writes(house.persistence) == ["request", "tool", "post-step", "final"]
        assert len(house.adapter.requests) == 1
        assert first.error is not None
        assert "no room" in first.error["message"]
        second = await agent.wait(agent.send("again"))
        assert second.reason == "completed"


@pytest.mark.parametrize("place", ["step/start", "turn/end"])
async def test_an_observer_that_raises_changes_nothing(place):
    """LOOP-31: the turn completes, the other observers are told, the next turn runs."""
    house = House(steps=[say("one"), say("two")])
    async with house.agent() as agent:

        def fail() -> None:
            raise RuntimeError("a bad observer")

        told: list[str] = []
        at(agent.session, place, fail)
        at(agent.session, place, lambda: told.append(place))
        assert (await agent.wait(agent.send("first"))).reason == "completed"
        assert (await agent.wait(agent.send("second"))).reason == "completed"
        assert told == [place]
        assert types(agent.session) == PLAIN + LATER


async def test_an_observer_of_an_error_that_raises_leaves_the_driver_alive():
    """LOOP-37: the failed turn is closed all the same, and the next one runs."""
    house = House(steps=[Finish("error"), say("two")])
    async with house.agent() as agent:

        def fail() -> None:
            raise RuntimeError("a bad observer")

        at(agent.session, "agent/error", fail)
        seen = notices(agent.session)
        assert (await agent.wait(agent.send("first"))).reason == "error"
        assert (await agent.wait(agent.send("second"))).reason == "completed"
        assert [error.code for error in errors(seen)] == ["UNKNOWN"]
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "chunk*", "step/end"),
            "turn/end{error UNKNOWN}",
            *LATER,
        ]


async def test_a_fork_counts_its_turns_on_from_its_parent():
    """LOOP-39: a fork of a session of two turns goes on with turn 3."""
    house = House(steps=[say("one"), say("two"), say("three")])
    async with house.agent() as agent:
        await agent.wait(agent.send("first"))
        await agent.wait(agent.send("second"))
        child = await house.agents.resume(await house.sessions.fork("s", new_id="child"))
        outcome = await child.wait(child.send("third"))
        assert (outcome.turn, outcome.reason) == (3, "completed")
        assert [data["turn"] for data in data_of(child.session, "turn/start")] == [1, 2, 3]


async def test_history_is_the_same_folded_at_once_and_event_by_event():
    """LOOP-41: and what the live session holds is that too."""
    house = House(
        steps=[[reason("hmm"), say("wait"), call("act", {}, id="c1")], say("one"), Finish("max_tokens"), say("three")],
        tools=[act],
    )
    async with house.agent() as agent:
        for text in ("first", "second", "third"):
            await agent.wait(agent.send(text))
        history = History()
        for event in agent.session.events:
            history.add(parse(event.type, event.data))
        assert len(history.messages) == 7
        assert history.messages == derive_messages(agent.session.events) == agent.session.messages

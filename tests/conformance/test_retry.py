"""Who decides whether a failed model request is tried again, when that is, and what the log keeps of it."""

from __future__ import annotations

import asyncio

import pytest

from app.llm.scripted import call, fail, say
from app.messages import AssistantMessage, ModelRef, TextBlock
from app.tools.schema import tool
from persistence.memory import MemoryPersistence
from policy.retry import BackoffRetryPolicy
from tests.support.asked import Asked
from tests.support.faults import DOWN, FailBefore, FaultyPersistence
from tests.support.house import House, types
from tests.support.virtual_time import virtual_time
from tests.support.watching import data_of

OPEN = ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header"]
ANSWERED = ["step/start", "chunk*", "assistant/message", "step/end"]


@tool
async def act() -> str:
    return "done"


async def test_the_retry_policy_is_told_the_earlier_failures_of_the_run():
    """REC-09: it retries while there is none; asked twice, it sees none and then the first."""
    retry = Asked(retries=1)
    house = House(steps=[fail("CONTEXT_WINDOW_EXCEEDED"), fail("SERVER")], retry=retry)
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert retry.asked == [("CONTEXT_WINDOW_EXCEEDED", []), ("SERVER", ["CONTEXT_WINDOW_EXCEEDED"])]
        assert types(agent.session) == [
            *(*OPEN, "step/end", "llm/retry", "step/start", "step/end", "turn/end{error SERVER}"),
        ]


async def test_a_success_empties_the_list_of_earlier_failures():
    """REC-10: failure, success with a tool, failure: both times there is none before it."""
    retry = Asked(retries=1)
    house = House(
        steps=[fail("SERVER"), call("act", {}, id="c1"), fail("TIMEOUT"), say("done")], tools=[act], retry=retry
    )
    async with house.agent() as agent:
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert retry.asked == [("SERVER", []), ("TIMEOUT", [])]
        assert [(data["step"], data["retry"]) for data in data_of(agent.session, "llm/retry")] == [(1, 1), (3, 1)]


async def test_a_retry_policy_that_raises_changes_nothing_about_the_failure():
    """REC-11: the turn ends with the failure that it was asked about."""

    async def raise_error(failure, earlier, turn, step, signal):
        raise RuntimeError("a bad policy")

    house = House(steps=[fail("SERVER", "overloaded")], retry=raise_error)
    async with house.agent() as agent:
        outcome = await agent.wait(agent.send("go"))
        assert outcome.error == {"message": "overloaded", "code": "SERVER", "step": 1}


@virtual_time
async def test_a_passing_failure_is_tried_again_in_a_new_step_after_a_while():
    """REC-14: the log says which retry it is, of how many and after how long; the clock agrees."""
    house = House(steps=[fail("RATE_LIMIT", "slow down", status=429), say("done")], retry=BackoffRetryPolicy())
    async with house.agent() as agent:
        began = asyncio.get_running_loop().time()
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.5)
        assert types(agent.session) == [*OPEN, "step/end", "llm/retry", *ANSWERED, "turn/end{completed}"]
        assert data_of(agent.session, "llm/retry") == [
            {
                "turn": 1,
                "step": 1,
                "retry": 1,
                "max_retries": 2,
                "delay_ms": 500,
                "failure": {"message": "slow down", "code": "RATE_LIMIT", "status": 429},
            }
        ]


@virtual_time
async def test_the_text_of_a_failed_attempt_is_never_history():
    """REC-17: its chunks stay in its step, and only the answer of the second attempt is a message."""
    house = House(steps=[[say("half"), fail("SERVER")], say("whole"), say("next")], retry=BackoffRetryPolicy())
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert types(agent.session) == [*OPEN, "chunk*", "step/end", "llm/retry", *ANSWERED, "turn/end{completed}"]
        assert [(data["step"], data["chunk"].get("text")) for data in data_of(agent.session, "assistant/chunk")] == [
            (1, "half"),
            (2, "whole"),
            (2, None),
        ]
        await agent.wait(agent.send("again"))
        assert house.adapter.requests[1].messages == house.adapter.requests[0].messages
        assert house.adapter.requests[2].messages[1] == AssistantMessage(
            (TextBlock("whole"),), ModelRef("script", "test")
        )


@virtual_time
async def test_a_failure_that_does_not_pass_is_not_waited_for():
    """REC-18: AUTH ends the turn at once."""
    house = House(steps=[fail("AUTH")], retry=BackoffRetryPolicy())
    async with house.agent() as agent:
        began = asyncio.get_running_loop().time()
        await agent.wait(agent.send("go"))
        assert asyncio.get_running_loop().time() == began
        assert types(agent.session) == [*OPEN, "step/end", "turn/end{error AUTH}"]


@virtual_time
async def test_a_vendors_wish_within_the_cap_is_used_as_it_is():
    """REC-19: up to the cap, the cap included."""
    house = House(
        steps=[fail("RATE_LIMIT", retry_after_ms=7_001), fail("RATE_LIMIT", retry_after_ms=20_000), say("done")],
        retry=BackoffRetryPolicy(),
    )
    async with house.agent() as agent:
        began = asyncio.get_running_loop().time()
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert asyncio.get_running_loop().time() - began == pytest.approx(27.001)
        assert [data["delay_ms"] for data in data_of(agent.session, "llm/retry")] == [7_001, 20_000]


@virtual_time
async def test_a_vendors_wish_above_the_cap_fails_the_turn():
    """REC-19: nothing is waited for."""
    house = House(steps=[fail("RATE_LIMIT", retry_after_ms=20_001)], retry=BackoffRetryPolicy())
    async with house.agent() as agent:
        began = asyncio.get_running_loop().time()
        await agent.wait(agent.send("go"))
        assert asyncio.get_running_loop().time() == began
        assert types(agent.session) == [*OPEN, "step/end", "turn/end{error RATE_LIMIT}"]


@virtual_time
async def test_retries_are_counted():
    """REC-22: with at most two, the third failure ends the turn; each wait is twice the one before."""
    house = House(steps=[fail("RATE_LIMIT")] * 3, retry=BackoffRetryPolicy(max_retries=2))
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert types(agent.session) == [
            *(*OPEN, "step/end", "llm/retry", "step/start", "step/end", "llm/retry", "step/start", "step/end"),
            "turn/end{error RATE_LIMIT}",
        ]
        assert [(data["retry"], data["delay_ms"]) for data in data_of(agent.session, "llm/retry")] == [
            (1, 500),
            (2, 1000),
        ]


async def test_a_failed_checkpoint_of_the_retried_request_is_no_failed_request():
    """REC-21: the turn ends CHECKPOINT_FAILED, and the retry policy was asked about the first request only."""
    store, retry = FaultyPersistence(MemoryPersistence()), Asked(retries=9)
    house = House([fail("SERVER"), say("done")], persistence=store, retry=retry)
    async with house.agent() as agent:
        store.next("append", None, FailBefore(DOWN))
        outcome = await agent.wait(agent.send("go"))
        assert types(agent.session) == [
            *(*OPEN, "step/end", "llm/retry", "step/start", "step/end", "turn/end{error CHECKPOINT_FAILED}"),
        ]
        assert outcome.error == {"code": "CHECKPOINT_FAILED", "message": str(DOWN), "step": 2}
        assert retry.asked == [("SERVER", [])]
        assert len(house.adapter.requests) == 1

"""What becomes of a failed model request: whose failure it is, and what the log says of it."""

from __future__ import annotations

from typing import Any

import pytest

from app.agent.step import Step
from app.agent.turn import ModelConfig
from app.llm.scripted import call, fail, say
from app.llm.types import ChunkStream, LlmRequest, OpenStream
from app.messages import Failure, Finish, ModelRef
from app.middleware import Named
from app.tools.schema import tool
from app.tools.types import Allow, Deny, ToolExecution
from tests.support.asked import Asked
from tests.support.house import House, types
from tests.support.watching import data_of, errors, notices, results

OPEN = ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header"]


async def test_a_stream_that_finishes_with_an_error_ends_the_turn():
    """REC-01: chunks stay, there is no message; `turn/end` has message, code and step; one notice says so."""
    house = House(steps=[[say("half"), Finish("error", Failure("the account is empty", "QUOTA", 402))]], retry=Asked())
    async with house.agent() as agent:
        seen = notices(agent.session)
        outcome = await agent.wait(agent.send("go"))
        assert types(agent.session) == [*OPEN, "chunk*", "step/end", "turn/end{error QUOTA}"]
        assert data_of(agent.session, "turn/end") == [
            {
                "turn": 1,
                "reason": "error",
                "error": {"message": "the account is empty", "code": "QUOTA", "step": 1},
            }
        ]
        assert outcome.error == {"message": "the account is empty", "code": "QUOTA", "step": 1}
        assert [(one.code, one.message, one.turn, one.step) for one in errors(seen)] == [
            ("QUOTA", "the account is empty", 1, 1)
        ]


async def test_a_stream_that_the_vendor_aborts_is_an_error_and_no_cancel():
    """REC-02: nobody here cancelled, so the turn is not `aborted`."""
    retry = Asked()
    house = House(steps=[[say("half"), Finish("aborted")]], retry=retry)
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert types(agent.session) == [*OPEN, "chunk*", "step/end", "turn/end{error ABORTED}"]
        assert retry.asked == [("ABORTED", [])]


@pytest.mark.parametrize(
    ("answer", "chunks"),
    [(fail(OSError("no route")), []), ([say("half"), fail(OSError("no route"))], ["chunk*"])],
    ids=["on opening", "while streaming"],
)
async def test_what_an_adapter_raises_is_offered_to_the_retry_policy(answer, chunks):
    """REC-04: whether it is raised instead of opening the stream or in the middle of it."""
    retry = Asked()
    house = House(steps=[answer], retry=retry)
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert retry.asked == [("UNKNOWN", [])]
        assert types(agent.session) == [*OPEN, *chunks, "step/end", "turn/end{error UNKNOWN}"]


class Refusing:
    name = "script"

    def stream(self, request: LlmRequest) -> ChunkStream:
        raise OSError("no route")


async def test_what_an_adapter_raises_before_there_is_a_stream_is_offered_too():
    """REC-04: also without anything to read."""
    retry = Asked()
    house = House(adapters=[Refusing()], retry=retry)
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert retry.asked == [("UNKNOWN", [])]
        assert types(agent.session) == [*OPEN, "step/end", "turn/end{error UNKNOWN}"]


async def test_an_adapter_that_does_not_exist_is_a_failed_request():
    """REC-05: NO_ADAPTER is offered to the retry policy like any other failure."""
    retry = Asked()
    house = House(config=ModelConfig("absent", "test"), retry=retry)
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert retry.asked == [("NO_ADAPTER", [])]
        assert types(agent.session) == [*OPEN, "step/end", "turn/end{error NO_ADAPTER}"]


async def raise_before(request: LlmRequest, call_next: OpenStream) -> ChunkStream:
    raise RuntimeError("a bad middleware")


async def raise_after(request: LlmRequest, call_next: OpenStream) -> ChunkStream:
    await call_next(request)
    raise RuntimeError("a bad middleware")


async def raise_while_read(request: LlmRequest, call_next: OpenStream) -> ChunkStream:
    inner = await call_next(request)

    async def spoilt() -> ChunkStream:
        async for chunk in inner:
            yield chunk
            raise RuntimeError("a bad middleware")

    return spoilt()


@pytest.mark.parametrize("place", ["stream_above", "stream_below"])
@pytest.mark.parametrize(
    ("middleware", "chunks"),
    [(raise_before, []), (raise_after, []), (raise_while_read, ["chunk*"])],
    ids=["before", "after", "while its stream is read"],
)
async def test_a_failing_stream_middleware_is_not_a_failed_request(middleware, chunks, place):
    """REC-06: the retry policy is not asked; the turn ends MIDDLEWARE_FAILED."""
    retry = Asked(retries=9)
    parts: dict[str, Any] = {place: [Named("bad", middleware)]}
    house = House(steps=[say("one", chunks=2)], retry=retry, **parts)
    async with house.agent() as agent:
        outcome = await agent.wait(agent.send("go"))
        assert retry.asked == []
        assert types(agent.session) == [*OPEN, *chunks, "step/end", "turn/end{error MIDDLEWARE_FAILED}"]
        assert outcome.error is not None
        assert "a bad middleware" in outcome.error["message"]


async def raise_in_policy(execution: ToolExecution) -> Allow | Deny:
    raise RuntimeError("a bad policy")


async def raise_in_listener(step: Step) -> None:
    raise RuntimeError("a bad listener")


@tool
async def broken() -> str:
    raise RuntimeError("a bad tool")


@pytest.mark.parametrize(
    ("parts", "result", "end"),
    [
        ({"tools": [broken]}, "TOOL_FAILED", "turn/end{completed}"),
        ({"tools": [broken], "policies": [Named("bad", raise_in_policy)]}, "POLICY_FAILED", "turn/end{completed}"),
        (
            {"tools": [broken], "listeners_above": [Named("bad", raise_in_listener)]},
            "TOOL_FAILED",
            "turn/end{error LISTENER_FAILED}",
        ),
    ],
    ids=["tool", "policy", "listener"],
)
async def test_other_failures_are_not_failed_requests(parts, result, end):
    """REC-06: what a tool, a policy or a listener raises is never offered to the retry policy."""
    retry = Asked(retries=9)
    house = House(steps=[call("broken", {}, id="c1"), say("done")], retry=retry, **parts)
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert retry.asked == []
        assert results(agent.session) == [("c1", result)]
        assert types(agent.session)[-1] == end


async def test_a_failed_request_of_a_middleware_is_its_own_affair():
    """REC-07: a model request made inside middleware that fails is no failure of the outer request."""
    house: House

    async def summarise(request: LlmRequest, call_next: OpenStream) -> ChunkStream:
        if request.session_id is not None:
            side = LlmRequest(ModelRef("absent", "small"), request.messages)
            async with house.llm.stream(side) as stream:
                async for _ in stream:
                    pass
        return await call_next(request)

    retry = Asked(retries=9)
    house = House(steps=[say("one")], retry=retry, stream_below=[Named("summarise", summarise)])
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert retry.asked == []
        assert house.adapter.requests == []
        assert types(agent.session) == [*OPEN, "step/end", "turn/end{error MIDDLEWARE_FAILED}"]


class Unsayable(Exception):
    def __str__(self) -> str:
        raise ValueError("it cannot be said")


def chained() -> Exception:
    error = RuntimeError("the request failed")
    error.__cause__ = ConnectionError("connection lost")
    error.__cause__.__cause__ = OSError("no route")
    return error


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (chained(), ["RuntimeError: the request failed", "ConnectionError: connection lost", "OSError: no route"]),
        (Unsayable(), ["Unsayable"]),
    ],
    ids=["a chain of causes", "one that cannot be said"],
)
async def test_the_message_of_a_failure_tells_its_causes_and_is_always_a_text(error, parts):
    """REC-12: causes are rendered in order; an error whose text cannot be made gets a safe one."""
    house = House(steps=[fail(error)], retry=Asked())
    async with house.agent() as agent:
        outcome = await agent.wait(agent.send("go"))
        assert outcome.error is not None
        message = outcome.error["message"]
        places = [message.find(part) for part in parts]
        assert -1 not in places
        assert places == sorted(places)

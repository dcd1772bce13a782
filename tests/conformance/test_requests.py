"""What each request holds: made from the log alone, headed once, and the same after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.agent.requests import rebuild_requests
from app.agent.turn import ModelConfig
from app.llm.scripted import call, fail, gate, say
from app.llm.types import ChunkStream, LlmRequest, OpenStream
from app.messages import AssistantMessage, ModelRef, TextBlock, ToolCallBlock, ToolMessage, ToolSpec, UserMessage
from app.middleware import Named
from app.session.history import derive_messages
from app.session.record import SessionEvent
from app.session.values import encode
from app.tools.schema import tool
from app.tools.types import ToolExecution
from persistence.memory import MemoryPersistence
from tests.support.faults import FaultyPersistence
from tests.support.gates import Gate
from tests.support.house import House, types
from tests.support.stores import Place
from tests.support.watching import at, calls_and_results, data_of

MODEL = ModelRef("script", "test")
OPEN = ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header"]


def user(text: str) -> UserMessage:
    return UserMessage((TextBlock(text),))


@tool
async def act() -> str:
    return "done"


def rebuilt(events: Sequence[SessionEvent]) -> list[LlmRequest]:
    """The request of each step of a log in which every step made one."""
    requests: list[LlmRequest] = []
    header = None
    for place, event in enumerate(events):
        if event.type != "step/start":
            continue
        for later in events[place : place + 2]:
            header = later.data if later.type == "request/header" else header
        assert header is not None
        config = header["config"]
        requests.append(
            LlmRequest(
                model=ModelRef(config["adapter"], config["model"]),
                messages=derive_messages(events[:place]),
                system=header.get("system"),
                tools=tuple(
                    ToolSpec(one["name"], one["description"], encode(one["schema"])) for one in header["tools"]
                ),
                temperature=config.get("temperature"),
                max_tokens=config.get("max_tokens"),
                stop=tuple(config.get("stop", ())),
                session_id="s",
            )
        )
    return requests


def as_text(requests: Sequence[LlmRequest]) -> list[str]:
    """Every byte of them, but for what belongs to the process that made them."""
    return [repr(replace(request, signal=None, session=None)) for request in requests]


@pytest.mark.parametrize(
    ("config", "setting"),
    [(ModelConfig(None, "test"), "model.adapter"), (ModelConfig("script", None), "model.name")],
)
async def test_a_turn_without_a_model_ends_and_names_the_setting(config, setting):
    """LOOP-09: the step is closed, no chunk was recorded, and the error says which setting is missing."""
    house = House(config=config)
    async with house.agent() as agent:
        outcome = await agent.wait(agent.send("go"))
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "step/end"),
            "turn/end{error CONFIGURATION}",
        ]
        assert outcome.error is not None
        assert setting in outcome.error["message"]
        assert outcome.error == {"code": "CONFIGURATION", "message": outcome.error["message"], "step": 1}
        assert house.adapter.requests == []


async def test_a_changed_model_is_recorded_before_it_is_asked():
    """LOOP-11: the first request of the second turn has a header of its own, with reason `change`."""
    house = House(steps=[say("one"), say("two")])
    async with house.agent() as agent:
        await agent.wait(agent.send("first"))
        agent.config = replace(agent.config, name="other")
        await agent.wait(agent.send("second"))
        headers = [(data["turn"], data["reason"], data["config"]) for data in data_of(agent.session, "request/header")]
        assert headers == [
            (1, "initial", {"adapter": "script", "model": "test"}),
            (2, "change", {"adapter": "script", "model": "other"}),
        ]
        assert [request.model for request in house.adapter.requests] == [MODEL, ModelRef("script", "other")]


async def test_the_header_is_recorded_once_while_nothing_changes():
    """LOOP-12: three requests with one configuration, in two turns, have exactly one header."""
    house = House(steps=[call("act", {}, id="c1"), say("one"), say("two")], tools=[act])
    async with house.agent() as agent:
        await agent.wait(agent.send("first"))
        await agent.wait(agent.send("second"))
        assert len(house.adapter.requests) == 3
        assert [data["reason"] for data in data_of(agent.session, "request/header")] == ["initial"]


async def test_what_is_injected_during_the_checkpoint_joins_the_next_request():
    """LOOP-14: the messages of a request are those from before its step; what comes after is for the next."""
    store = FaultyPersistence(MemoryPersistence())
    house = House([call("act", {}, id="c1"), say("done")], [act], store)
    async with house.agent() as agent:
        held = store.hold("append")
        prompt = agent.send("go")
        await held.reached()
        agent.inject("by the way")
        held.open()
        await agent.wait(prompt)
        assert types(agent.session)[:6] == [*OPEN, "inbox/accepted"]
        first, second = (request.messages for request in house.adapter.requests)
        assert first == (user("go"),)
        assert second == (
            user("go"),
            AssistantMessage((ToolCallBlock("c1", "act", "{}"),), MODEL),
            ToolMessage("c1", False, "done"),
            user("by the way"),
        )


async def pass_on(request: LlmRequest, call_next: OpenStream) -> ChunkStream:
    return await call_next(request)


async def test_every_request_can_be_rebuilt_from_the_log(place: Place):
    """LOOP-16: header and log up to its `step/start` give what the adapter got, byte for byte, also after a reload."""
    held = Gate()

    @tool(parallel_safe=True)
    async def note(text: str, execution: ToolExecution) -> dict[str, object]:
        execution.inject([{"type": "text", "text": text}, {"type": "image", "data": "\ud83d\udc1f", "size": 1.0}])
        return {"b": 1.0, "a": [None, text, 2**70]}

    script = [
        [say("one"), call("note", {"text": "é\0"}, id="c1"), call("absent", "", id="c1"), call("note", "{")],
        fail("SERVER"),
        [say("half"), gate(held), fail("RATE_LIMIT")],
        say("two"),
        say("three"),
    ]
    system = "Be brief.\n\u2028"
    configs = [
        ModelConfig("script", "test", 0.0, 100, ("END", "\n"), system),
        ModelConfig("script", "other", 1, None, (), None),
    ]
    passing: dict[str, Any] = {"stream_above": [Named("a", pass_on)], "stream_below": [Named("b", pass_on)]}
    house = House(script, [note], place.persistence(), config=configs[0], **passing)
    async with house.agent() as agent:
        prompt = agent.send("first", meta={"from": "a test"})
        await held.reached.wait()
        agent.steer("faster")
        held.open()
        assert (await agent.wait(prompt)).reason == "completed"
        agent.config = configs[1]
        await agent.wait(agent.send([{"type": "text", "text": "second"}, {"type": "image", "url": "x"}]))
        asked = as_text(house.adapter.requests)
        assert len(asked) == 5
        assert as_text(rebuilt(agent.session.events)) == asked
        assert as_text(rebuild_requests("s", agent.session.events)) == asked

    again = House([say("four")], [note], place.persistence(), config=configs[1], **passing)
    async with again.resumed() as agent:
        assert as_text(rebuilt(agent.session.events)) == asked
        await agent.wait(agent.send("third"))
        assert as_text(rebuilt(agent.session.events)) == asked + as_text(again.adapter.requests)
        assert as_text(rebuild_requests("s", agent.session.events)) == asked + as_text(again.adapter.requests)


async def test_a_resumed_session_says_so_before_its_first_request(durable_place: Place):
    """LOOP-13: the first request after a restart has a header with reason `resume`; the next ones have none."""
    async with House([say("one")], persistence=durable_place.persistence()).agent() as agent:
        await agent.wait(agent.send("first"))
    async with House([say("two"), say("three")], persistence=durable_place.persistence()).resumed() as agent:
        await agent.wait(agent.send("second"))
        await agent.wait(agent.send("third"))
        headers = [(data["turn"], data["reason"]) for data in data_of(agent.session, "request/header")]
        assert headers == [(1, "initial"), (2, "resume")]


async def test_a_step_cancelled_before_its_header_leaves_the_header_to_the_next(place: Place):
    """LOOP-13: a step that made no request was not the first one of the resumed session."""
    async with House([say("one")], persistence=place.persistence()).agent() as agent:
        await agent.wait(agent.send("first"))
    async with House([say("two")], persistence=place.persistence()).resumed() as agent:
        at(agent.session, "step/start", agent.cancel)
        assert (await agent.wait(agent.send("second"))).reason == "aborted"
        await agent.wait(agent.send("third"))
        headers = [(data["turn"], data["reason"]) for data in data_of(agent.session, "request/header")]
        assert headers == [(1, "initial"), (3, "resume")]


async def test_results_stand_in_model_order_whichever_body_ended_first(place: Place):
    """SCH-03: the request that shows them is the same, byte for byte, before and after a reload."""
    second_ended = Gate()

    @tool(parallel_safe=True)
    async def slow() -> str:
        await second_ended()
        return "slow"

    @tool(parallel_safe=True)
    async def fast() -> str:
        second_ended.open()
        return "fast"

    house = House(
        [[call("slow", {}, id="c1"), call("fast", {}, id="c2")], say("done")], [slow, fast], place.persistence()
    )
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert calls_and_results(agent.session) == ["call c1", "call c2", "result c1", "result c2"]
        assert house.adapter.requests[1].messages[2:] == (
            ToolMessage("c1", False, "slow"),
            ToolMessage("c2", False, "fast"),
        )
    async with House(persistence=place.persistence()).resumed() as agent:
        assert as_text(rebuilt(agent.session.events)) == as_text(house.adapter.requests)

"""What the log keeps of a model's stream, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace

from app.llm.scripted import ScriptedAdapter, call, say
from app.llm.types import ChunkStream, LlmRequest, OpenStream
from app.messages import BlockEnd, Finish, ModelRef, TextDelta, ToolCallDelta
from app.middleware import Named
from app.session.call_keys import argument_key, idempotency_key
from app.tools.schema import tool
from app.tools.types import ToolExecution
from tests.support.asked import Asked
from tests.support.house import House, types
from tests.support.stores import Place
from tests.support.watching import data_of

OPENED = ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header"]


async def test_a_delta_for_a_block_that_has_ended_is_recorded_and_otherwise_ignored():
    """LLM-02: it is among the chunks that the message cites, and not in its text."""
    chunks = [TextDelta(0, "yes"), BlockEnd(0), TextDelta(0, " and no"), Finish("stop")]
    house = House(steps=[chunks])
    async with house.agent() as agent:
        await agent.wait(agent.send("?"))
        assert [data["chunk"]["kind"] for data in data_of(agent.session, "assistant/chunk")] == [
            *("text_delta", "block_end", "text_delta", "finish"),
        ]
        (message,) = data_of(agent.session, "assistant/message")
        assert message["content"] == [{"type": "text", "text": "yes"}]
        assert message["chunks"] == [[5, 8]]


async def test_half_an_answer_is_never_taken_for_a_whole_one():
    """LLM-03: a stream without a finish is STREAM_CLOSED, the retry policy is asked, and there is no message."""
    asked = Asked()
    house = House(steps=[[TextDelta(0, "half an")]], retry=asked)
    async with house.agent() as agent:
        outcome = await agent.wait(agent.send("?"))
        assert (asked.asked, outcome.error and outcome.error["code"]) == ([("STREAM_CLOSED", [])], "STREAM_CLOSED")
        assert types(agent.session) == [*OPENED, "chunk*", "step/end", "turn/end{error STREAM_CLOSED}"]


async def test_the_message_names_the_model_that_answered():
    """LLM-10: middleware sent the request to another adapter; the header keeps what the loop asked."""
    other = ScriptedAdapter([say("from elsewhere")], name="other")

    async def reroute(request: LlmRequest, call_next: OpenStream) -> ChunkStream:
        return await call_next(replace(request, model=ModelRef("other", "big")))

    house = House(stream_above=[Named("reroute", reroute)], adapters=[ScriptedAdapter([]), other])
    async with house.agent() as agent:
        await agent.wait(agent.send("?"))
        assert [data["model"] for data in data_of(agent.session, "assistant/message")] == [
            {"adapter": "other", "model": "big"}
        ]
        assert [data["config"] for data in data_of(agent.session, "request/header")] == [
            {"adapter": "script", "model": "test"}
        ]


async def test_the_blocks_decide_what_runs_and_not_the_reason():
    """LLM-15: `tool_calls` with text alone ends the turn; `stop` with a call runs it."""
    ran = []

    @tool
    async def act() -> str:
        ran.append("act")
        return "done"

    asks = [ToolCallDelta(0, "{}", "c1", "act"), Finish("stop")]
    house = House(steps=[[TextDelta(0, "no calls"), Finish("tool_calls")], asks, say("done")], tools=[act])
    async with house.agent() as agent:
        assert (await agent.wait(agent.send("one"))).reason == "completed"
        assert ran == []
        assert (await agent.wait(agent.send("two"))).reason == "completed"
        assert ran == ["act"]


async def test_a_vendor_that_numbers_its_calls_anew_gets_three_ids(place: Place):
    """KEY-05: each pair matches, and the keys are the same after a reload."""
    seen: list[tuple[str, str, str]] = []

    @tool
    async def act(execution: ToolExecution) -> str:
        seen.append((execution.call_id, execution.idempotency_key, execution.argument_key))
        return execution.call_id

    steps = [answer for _ in range(3) for answer in (call("act", {}, id="call_0"), say("ok"))]
    house = House(steps=steps, tools=[act], persistence=place.persistence())
    async with house.agent() as agent:
        for prompt in ("one", "two", "three"):
            await agent.wait(agent.send(prompt))
    ids = [call_id for call_id, _, _ in seen]
    assert ids == ["call_0", "call_0#2.1.0", "call_0#3.1.0"]
    later = House(persistence=house.persistence)
    async with later.opened():
        session = await later.sessions.resume("s")
        assert [data["call_id"] for data in data_of(session, "tool/call")] == ids
        assert [(data["call_id"], data["value"]) for data in data_of(session, "tool/result")] == [(i, i) for i in ids]
        assert seen == [(i, idempotency_key("s", i), argument_key("s", "act", "{}")) for i in ids]
        await later.sessions.release(session)

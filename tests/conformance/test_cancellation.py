"""What cancelling does, wherever it lands: the turn is closed truthfully, and the next prompt is a prompt as ever."""

from __future__ import annotations

import asyncio
import logging

import pytest

from app.agent.agent import Agent
from app.agent.outcome import Outcome
from app.agent.turn import ModelConfig
from app.llm.scripted import fail, gate, reason, say
from app.llm.types import ChunkStream, LlmRequest, OpenStream
from app.messages import AssistantMessage, TextBlock, ToolCallDelta, UserMessage
from app.middleware import Named
from app.session import events as ev
from persistence.memory import MemoryPersistence
from policy.checkpoint import EveryEventCheckpointPolicy
from policy.retry import BackoffRetryPolicy
from tests.support.asked import Asked
from tests.support.faults import FaultyPersistence
from tests.support.gates import Gate
from tests.support.house import House, types
from tests.support.virtual_time import all_quiet, virtual_time
from tests.support.watching import at, data_of, notices, writes

OPEN = ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header"]
STEP = ["step/start", "chunk*", "assistant/message", "step/end"]
ABORTED = ["step/end", "turn/end{aborted}"]


async def test_cancelling_an_idle_agent_does_nothing():
    """CAN-01: the prompt after it runs as if nothing had been."""
    house = House(steps=[say("one")])
    async with house.agent() as agent:
        agent.cancel()
        assert types(agent.session) == []
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert types(agent.session) == [*OPEN, *STEP[1:], "turn/end{completed}"]


async def test_a_prompt_cancelled_before_its_turn_is_discarded_and_its_waiter_told():
    """CAN-02: there is no turn, and whoever waits for the message learns that it was discarded."""
    house = House()
    async with house.agent() as agent:
        waiting: list[asyncio.Task[Outcome]] = []

        def wait_then_cancel() -> None:  # runs before the driver that this very message wakes
            waiting.append(asyncio.create_task(agent.wait("m1")))
            asyncio.get_running_loop().call_soon(agent.cancel)

        at(agent.session, "inbox/accepted", wait_then_cancel)
        agent.send("go", id="m1")
        outcome = await waiting[0]
        await agent.wait_idle()
        assert (outcome.is_discarded, outcome.cause, outcome.turn) == (True, "user", None)
        assert types(agent.session) == ["inbox/accepted", "inbox/discarded"]


async def test_cancelling_while_the_agent_wakes_drops_the_prompt():
    """CAN-03: an observer of the notice `running` cancels; there is no turn, and the agent is idle again."""
    house = House()
    async with house.agent() as agent:
        seen = notices(agent.session)
        at(agent.session, "agent/status running", agent.cancel)
        agent.send("go")
        await agent.wait_idle()
        assert types(agent.session) == ["inbox/accepted", "inbox/discarded"]
        assert seen == [ev.AgentStatus("running"), ev.AgentStatus("idle")]
        assert agent.status == "idle"


async def test_a_prompt_sent_after_cancelling_in_the_same_moment_runs():
    """CAN-04: and `wait_idle` does not return before it has."""
    house = House(steps=[say("two")])
    async with house.agent() as agent:

        def cancel_and_send() -> None:
            agent.cancel()
            agent.send("two", id="m2")

        at(agent.session, "agent/status running", cancel_and_send)
        agent.send("one", id="m1")
        await agent.wait_idle()
        assert types(agent.session) == [
            *("inbox/accepted", "inbox/discarded", "inbox/accepted", "turn/start", "user/message"),
            *("step/start", "request/header", *STEP[1:], "turn/end{completed}"),
        ]
        assert data_of(agent.session, "turn/start") == [{"turn": 1, "input": ["m2"]}]


@pytest.mark.parametrize("drop", [Agent.cancel, lambda agent: agent.discard(["m1"])], ids=["cancel", "discard"])
@pytest.mark.parametrize("rounds", range(8))
async def test_a_prompt_is_dropped_or_runs_whenever_that_comes(drop, rounds):
    """CAN-03, CAN-04: some rounds of the event loop after it was sent; the agent lives on, and takes the next one."""
    house = House(steps=[say("one"), say("two")])
    async with house.agent() as agent:
        agent.send("one", id="m1")
        for _ in range(rounds):
            await asyncio.sleep(0)
        is_taken = "m1" not in agent.session.state.pending
        if not is_taken or drop is Agent.cancel:
            drop(agent)
        await agent.wait_idle()
        assert types(agent.session)[1] == ("turn/start" if is_taken else "inbox/discarded")
        assert (await agent.wait(agent.send("two"))).reason == "completed"
        assert agent.status == "idle"


@pytest.mark.parametrize("rounds", range(8))
async def test_a_prompt_that_is_kept_is_not_touched_before_its_turn_has_begun(rounds):
    """CAN-03: there is no turn yet that could be cancelled."""
    house = House(steps=[say("one")])
    async with house.agent() as agent:
        agent.send("one", id="m1")
        for _ in range(rounds):
            await asyncio.sleep(0)
        is_taken = "m1" not in agent.session.state.pending
        agent.cancel(keep_inbox=True)
        assert is_taken or (await agent.wait("m1")).reason == "completed"


async def test_a_turn_cancelled_as_it_starts_keeps_its_prompt_in_history():
    """CAN-05: an observer of `turn/start` cancels; no step is made, and the model sees the prompt in the next turn."""
    house = House(steps=[say("two")])
    async with house.agent() as agent:
        at(agent.session, "turn/start", agent.cancel)
        assert (await agent.wait(agent.send("one"))).reason == "aborted"
        assert types(agent.session) == ["inbox/accepted", "turn/start", "user/message", "turn/end{aborted}"]
        await agent.wait(agent.send("two"))
        assert house.adapter.requests[0].messages == (
            UserMessage((TextBlock("one"),)),
            UserMessage((TextBlock("two"),)),
        )


@pytest.mark.parametrize(
    ("place", "recorded"),
    [("step/start", OPEN[:-1]), ("request/header", OPEN)],
)
async def test_a_step_cancelled_as_it_starts_asks_nobody(place, recorded):
    """CAN-07: the adapter is not opened and there is no checkpoint before it."""
    house = House(steps=[say("one")])
    async with house.agent() as agent:
        at(agent.session, place, agent.cancel)
        await agent.wait(agent.send("go"))
        assert types(agent.session) == [*recorded, *ABORTED]
        assert house.adapter.requests == []
        assert await writes(house.persistence) == ["final"]


async def test_text_that_was_streamed_before_the_cancel_is_kept():
    """CAN-09: as an interrupted message, with the reasoning and its own chunks, durable, and in the next request."""
    held = Gate()
    house = House(steps=[[reason("hmm"), say("one two", chunks=2), gate(held), say("three")], say("next")])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        agent.cancel()
        outcome = await agent.wait(prompt)
        assert types(agent.session) == [*OPEN, "chunk*", "assistant/message", *ABORTED]
        assert data_of(agent.session, "assistant/message") == [
            {
                "turn": 1,
                "step": 1,
                "content": [{"type": "reasoning", "text": "hmm"}, {"type": "text", "text": "one two"}],
                "chunks": [[5, 7]],
                "model": {"adapter": "script", "model": "test"},
                "finish": "aborted",
                "interrupted": True,
            }
        ]
        assert (outcome.reason, outcome.cause, outcome.durable) == ("aborted", "user", True)
        stored = await house.persistence.read("s")
        assert stored.events == agent.session.events
        assert await writes(house.persistence) == ["request", "final"]
        await agent.wait(agent.send("again"))
        assert [type(message) for message in house.adapter.requests[1].messages] == [
            UserMessage,
            AssistantMessage,
            UserMessage,
        ]


async def test_a_chunk_that_is_being_made_durable_belongs_to_what_was_streamed():
    """CAN-09: with `every_event`, cancelled during the flush after a chunk, the message has that chunk's text too."""
    store = FaultyPersistence(MemoryPersistence())
    house = House([say("one two", chunks=2)], persistence=store, policy=EveryEventCheckpointPolicy)
    async with house.agent() as agent:
        store.next("append", *[None] * 4)  # the turn's opening, the step's, the header, the first chunk
        held = store.hold("append")
        prompt = agent.send("go")
        await held.reached()
        assert [data["chunk"]["text"] for data in data_of(agent.session, "assistant/chunk")] == ["one", " two"]
        agent.cancel()
        held.open()
        assert (await agent.wait(prompt)).reason == "aborted"
        message = data_of(agent.session, "assistant/message")[0]
        assert (message["content"], message["chunks"]) == ([{"type": "text", "text": "one two"}], [[5, 6]])


async def test_half_a_call_is_dropped_from_what_was_streamed():
    """CAN-10: the text stays, the call does not, and no call is recorded."""
    held = Gate()
    house = House(steps=[[say("one"), ToolCallDelta(1, '{"a":', "c1", "act"), gate(held), say("two")]])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        agent.cancel()
        await agent.wait(prompt)
        assert types(agent.session) == [*OPEN, "chunk*", "assistant/message", *ABORTED]
        assert data_of(agent.session, "assistant/message")[0]["content"] == [{"type": "text", "text": "one"}]


@pytest.mark.parametrize(
    ("parts", "chunks"),
    [([reason("hmm")], 1), ([ToolCallDelta(0, '{"a":', "c1", "act")], 1), ([], 0)],
    ids=["only reasoning", "half a call", "nothing"],
)
async def test_without_visible_text_there_is_no_message(parts, chunks):
    """CAN-11: the chunks are kept, a message is not made of them."""
    held = Gate()
    house = House(steps=[[*parts, gate(held), say("one")]])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        agent.cancel()
        await agent.wait(prompt)
        assert types(agent.session) == [*OPEN, *["chunk*"] * chunks, *ABORTED]


async def test_a_request_that_fails_to_open_after_the_cancel_is_no_failure(caplog):
    """CAN-11: nobody is asked about a retry, and nothing is reported as a fault of the runtime."""
    held, retry = Gate(), Asked(retries=9)

    async def wait_first(request: LlmRequest, call_next: OpenStream) -> ChunkStream:
        await held()
        return await call_next(request)

    house = House(config=ModelConfig("absent", "test"), stream_below=[Named("wait", wait_first)], retry=retry)
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        agent.cancel()
        held.open()
        assert (await agent.wait(prompt)).reason == "aborted"
        assert types(agent.session) == [*OPEN, *ABORTED]
        assert retry.asked == []
        assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_middleware_that_fails_after_the_cancel_does_not_take_the_text_away():
    """CAN-09: what was visible is kept, although the stream that a middleware made fails as it is closed."""
    held = Gate()

    async def fail_at_the_end(request: LlmRequest, call_next: OpenStream) -> ChunkStream:
        inner = await call_next(request)

        async def pass_on() -> ChunkStream:
            try:
                async for chunk in inner:
                    yield chunk
            finally:
                raise RuntimeError("a bad middleware")

        return pass_on()

    house = House(steps=[[say("one"), gate(held), say("two")]], stream_above=[Named("bad", fail_at_the_end)])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        agent.cancel()
        assert (await agent.wait(prompt)).reason == "aborted"
        assert types(agent.session) == [*OPEN, "chunk*", "assistant/message", *ABORTED]


@virtual_time
async def test_the_text_of_a_failed_attempt_is_not_made_a_message_by_a_cancel():
    """CAN-12: cancelled during the backoff, the turn has no message."""
    house = House(steps=[[say("half"), fail("SERVER")]], retry=BackoffRetryPolicy())
    async with house.agent() as agent:
        prompt = agent.send("go")
        await all_quiet()
        assert types(agent.session)[-1] == "llm/retry"
        agent.cancel()
        await agent.wait(prompt)
        assert types(agent.session) == [*OPEN, "chunk*", "step/end", "llm/retry", "turn/end{aborted}"]


@virtual_time
async def test_an_interrupted_message_cites_its_own_attempt_only():
    """CAN-12b: attempt 1 failed after text; the message holds the text of attempt 2 and cites its chunks."""
    held = Gate()
    house = House(
        steps=[[say("half"), fail("SERVER")], [say("whole", chunks=2), gate(held), say("!")]],
        retry=BackoffRetryPolicy(),
    )
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        agent.cancel()
        await agent.wait(prompt)
        assert types(agent.session) == [
            *(*OPEN, "chunk*", "step/end", "llm/retry", "step/start", "chunk*", "assistant/message"),
            *ABORTED,
        ]
        message = data_of(agent.session, "assistant/message")[0]
        assert (message["content"], message["chunks"]) == ([{"type": "text", "text": "whole"}], [[9, 10]])


async def test_a_stream_that_gives_nothing_more_is_closed_at_once():
    """CAN-34: its cleanup is awaited before the step ends."""
    order: list[str] = []
    hangs = asyncio.Event()

    async def hang() -> None:
        hangs.set()
        try:
            await asyncio.Event().wait()
        finally:
            order.append("cleanup begins")
            await asyncio.sleep(0)
            order.append("cleanup ends")

    house = House(steps=[[say("one"), gate(hang), say("two")], say("next")])
    async with house.agent() as agent:
        at(agent.session, "step/end", lambda: order.append("step/end"))
        at(agent.session, "turn/end", lambda: order.append("turn/end"))
        prompt = agent.send("go")
        await hangs.wait()
        agent.cancel()
        await agent.wait(prompt)
        assert order == ["cleanup begins", "cleanup ends", "step/end", "turn/end"]
        assert types(agent.session) == [*OPEN, "chunk*", "assistant/message", *ABORTED]

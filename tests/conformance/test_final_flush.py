"""The flush after each turn: waited for by everybody, and never part of the turn that has ended."""

from __future__ import annotations

import asyncio

import pytest

from app.llm.scripted import Step as Answer
from app.llm.scripted import gate, say
from app.messages import AssistantMessage, ModelRef, TextBlock, UserMessage
from app.session import events as ev
from app.session.errors import PersistenceUnavailable, SessionNotFound
from persistence.memory import MemoryPersistence
from policy.checkpoint import TurnEndCheckpointPolicy
from tests.support.faults import DOWN, FailBefore, FaultyPersistence
from tests.support.gates import Gate
from tests.support.house import House, types
from tests.support.virtual_time import virtual_time, waits
from tests.support.watching import at, data_of, errors, notices

PLAIN = [
    *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header"),
    *("chunk*", "assistant/message", "step/end", "turn/end{completed}"),
]
NEXT_TURN = ["turn/start", "user/message", "step/start", "chunk*", "assistant/message", "step/end"]
FULL = FailBefore(PersistenceUnavailable("s", "disk full"))
CHECKPOINTS = (None, None)
"""A plain answer has two checkpoints before its final flush: nothing happens to them."""


def faulty() -> FaultyPersistence:
    return FaultyPersistence(MemoryPersistence())


@virtual_time
async def test_nobody_is_told_of_the_end_before_it_is_flushed():
    """FIN-01: until the final flush has settled the status is `running`, and `wait` and `wait_idle` wait."""
    store = faulty()
    house = House([say("one")], persistence=store)
    async with house.agent() as agent:
        seen = notices(agent.session)
        store.next("append", *CHECKPOINTS)
        held = store.hold("append")
        waiting = asyncio.create_task(agent.wait(agent.send("go", id="m1")))
        idle = asyncio.create_task(agent.wait_idle())
        await held.reached()
        late = asyncio.create_task(agent.wait("m1"))
        assert await waits(waiting)
        assert await waits(idle)
        assert await waits(late)
        assert types(agent.session) == PLAIN
        assert seen == [ev.AgentStatus("running")]
        held.open()
        assert (await waiting).durable
        assert (await late).durable
        await idle
        assert seen == [ev.AgentStatus("running"), ev.AgentStatus("idle")]


async def test_the_next_turn_starts_when_the_last_one_is_flushed():
    """FIN-02: two prompts at once, without checkpoints inside the turns, are two turns and two flushes."""
    store = faulty()
    house = House([say("one"), say("two")], persistence=store, policy=lambda sessions: TurnEndCheckpointPolicy())
    async with house.agent() as agent:
        store.log.clear()
        for nth in (1, 2):
            at(agent.session, "turn/start", lambda: store.log.append("turn/start"), nth=nth)
        agent.send("first")
        agent.send("second")
        await agent.wait_idle()
        assert store.log == ["turn/start", "append", "append done", "turn/start", "append", "append done"]
        assert store.reasons == ["final", "final"]
        assert house.adapter.requests[1].messages == (
            UserMessage((TextBlock("first"),)),
            AssistantMessage((TextBlock("one"),), ModelRef("script", "test")),
            UserMessage((TextBlock("second"),)),
        )


async def test_a_failed_final_flush_is_told_once_and_stops_nothing():
    """FIN-03: one notice, and the queued prompt runs."""
    store = faulty()
    house = House([say("one"), say("two")], persistence=store)
    async with house.agent() as agent:
        seen = notices(agent.session)
        store.next("append", *CHECKPOINTS, FULL)
        first, second = agent.send("first"), agent.send("second")
        assert (await agent.wait(first)).reason == "completed"
        assert (await agent.wait(second)).reason == "completed"
        assert [("disk full" in error.message, error.turn) for error in errors(seen)] == [(True, 1)]
        assert (await agent.wait(second)).durable
        assert (await store.inner.read("s")).events == agent.session.events


async def test_a_failed_final_flush_leaves_no_trace_in_the_log():
    """FIN-04: the last event is the end of the turn, and the outcome says that it is not durable."""
    store = faulty()
    house = House([say("one")], persistence=store)
    async with house.agent() as agent:
        store.next("append", *CHECKPOINTS, FULL)
        outcome = await agent.wait(agent.send("go"))
        await agent.wait_idle()
        assert types(agent.session) == PLAIN
        assert (outcome.reason, outcome.durable) == ("completed", False)
        assert len((await store.inner.read("s")).events) < len(agent.session)


async def test_a_cancel_during_the_final_flush_comes_too_late_for_the_turn():
    """FIN-05: it stays `completed`; only what is pending is dropped."""
    store = faulty()
    house = House([say("one")], persistence=store)
    async with house.agent() as agent:
        store.next("append", *CHECKPOINTS)
        held = store.hold("append")
        first, second = agent.send("first"), agent.send("second")
        await held.reached()
        agent.cancel()
        held.open()
        assert (await agent.wait(first)).reason == "completed"
        assert (await agent.wait(second)).is_discarded
        await agent.wait_idle()
        assert types(agent.session) == ["inbox/accepted", *PLAIN, "inbox/discarded"]
        assert house.adapter.requests[0].signal is not None
        assert not house.adapter.requests[0].signal.is_cancelled
        assert data_of(agent.session, "inbox/discarded") == [{"ids": [second], "cause": "user"}]


async def test_steering_during_the_final_flush_starts_a_turn():
    """FIN-06: it is the input of the next one."""
    store = faulty()
    house = House([say("one"), say("two")], persistence=store)
    async with house.agent() as agent:
        store.next("append", *CHECKPOINTS)
        held = store.hold("append")
        agent.send("first")
        await held.reached()
        steering = agent.steer("faster")
        held.open()
        assert (await agent.wait(steering)).turn == 2
        assert types(agent.session) == [*PLAIN, "inbox/accepted", *NEXT_TURN, "turn/end{completed}"]
        assert data_of(agent.session, "turn/start")[1] == {"turn": 2, "input": [steering]}


async def test_with_a_store_that_refuses_everything_a_prompt_ends_in_an_error():
    """FIN-09: the adapter is never opened, nothing is stored, two notices say so, and the session stays usable."""
    store = faulty()
    house = House([say("one")], persistence=store)
    async with house.agent() as agent:
        seen = notices(agent.session)
        store.always("append", FailBefore(DOWN))
        outcome = await agent.wait(agent.send("go"))
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "step/end"),
            "turn/end{error CHECKPOINT_FAILED}",
        ]
        assert outcome.error == {"code": "CHECKPOINT_FAILED", "message": str(DOWN), "step": 1}
        assert not outcome.durable
        assert house.adapter.requests == []
        assert [(error.message, error.turn) for error in errors(seen)] == [(str(DOWN), 1)] * 2
        with pytest.raises(SessionNotFound):
            await store.inner.read("s")
        assert (agent.status, agent.session.is_lost) == ("idle", False)
        store.heal()


async def test_once_the_store_heals_the_next_checkpoint_writes_all_that_was_held_back():
    """FIN-10: before the adapter is opened, in order, no seq missing, and nothing was added for the failure."""
    store, opening = faulty(), Gate()
    house = House([Answer(say("two"), opening=opening)], persistence=store)
    async with house.agent() as agent:
        store.always("append", FailBefore(DOWN))
        await agent.wait(agent.send("first"))
        failed = types(agent.session)
        store.heal()
        prompt = agent.send("second")
        await opening.reached.wait()
        stored = (await store.inner.read("s")).events
        assert stored == agent.session.events
        assert [event.seq for event in stored] == list(range(len(stored)))
        opening.open()
        assert (await agent.wait(prompt)).reason == "completed"
        assert types(agent.session) == [*failed, "inbox/accepted", *NEXT_TURN, "turn/end{completed}"]


@virtual_time
async def test_closing_an_agent_waits_for_the_final_flush():
    """FIN-14: and releases the session after that."""
    store = faulty()
    house = House([say("one")], persistence=store)
    async with house.agent() as agent:
        store.next("append", *CHECKPOINTS)
        held = store.hold("append")
        agent.send("go")
        await held.reached()
        closing = asyncio.create_task(agent.close())
        assert await waits(closing)
        assert store.log[-1] == "append"
        held.open()
        await closing
        assert store.log[-3:] == ["append done", "release", "release done"]
        assert data_of(agent.session, "turn/end") == [{"turn": 1, "reason": "completed"}]


async def test_closing_during_a_turn_is_followed_by_its_final_flush():
    """FIN-14: also when it is the closing that ends the turn."""
    store, held = faulty(), Gate()
    house = House([gate(held)], persistence=store)
    async with house.agent() as agent:
        agent.send("go")
        await held.reached.wait()
        store.log.clear()
        await agent.close()
        assert store.log == ["append", "append done", "release", "release done"]
        assert (await store.inner.read("s")).events == agent.session.events

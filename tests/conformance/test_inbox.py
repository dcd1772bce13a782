"""The inbox: what is accepted is in the log at once, and is taken in, discarded with a cause, or still pending."""

from __future__ import annotations

import pytest

from app.llm.scripted import call, fail, gate, say
from app.messages import TextBlock, UserMessage
from app.session.errors import AgentClosed, PersistenceUnavailable, SessionFenced, UnstorableValue
from app.tools.schema import tool
from app.tools.types import ToolExecution
from persistence.memory import MemoryPersistence
from tests.support.faults import DOWN, FailBefore, FaultyPersistence
from tests.support.gates import Gate
from tests.support.house import House, types
from tests.support.watching import at, data_of, notices, taken

STEP = ["step/start", "chunk*", "assistant/message", "step/end"]
FIRST_STEP = ["step/start", "request/header", *STEP[1:]]


async def test_steering_during_a_body_is_taken_in_after_the_last_result():
    """INB-01: it stands between call and result, and is taken in at the end of the step; one more step sees it."""
    held = Gate()

    @tool
    async def act() -> str:
        await held()
        return "done"

    house = House(steps=[call("act", {}, id="c1"), say("fine")], tools=[act])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        agent.steer("faster")
        held.open()
        await agent.wait(prompt)
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "chunk*"),
            *("assistant/message", "tool/call", "inbox/accepted", "tool/result", "user/message", "step/end"),
            *STEP,
            "turn/end{completed}",
        ]
        assert house.adapter.requests[1].messages[-1] == UserMessage((TextBlock("faster"),))


async def test_steering_forces_one_more_step():
    """INB-01: also where the step it comes in would have been the last."""
    held = Gate()
    house = House(steps=[[say("one"), gate(held)], say("two")])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        agent.steer("faster")
        held.open()
        assert (await agent.wait(prompt)).reason == "completed"
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "chunk*"),
            *("inbox/accepted", "chunk*", "assistant/message", "user/message", "step/end"),
            *STEP,
            "turn/end{completed}",
        ]
        assert len(house.adapter.requests) == 2


async def test_steering_an_idle_agent_is_a_prompt():
    """INB-02: it starts a turn, whose input it is, and keeps its placement."""
    house = House(steps=[say("one")])
    async with house.agent() as agent:
        message = agent.steer("go")
        await agent.wait(message)
        assert data_of(agent.session, "turn/start") == [{"turn": 1, "input": [message]}]
        assert taken(agent.session) == [(1, "go", "next_step")]
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message"),
            *FIRST_STEP,
            "turn/end{completed}",
        ]


async def test_context_wakes_nobody():
    """INB-03: it is accepted, and the agent stays idle."""
    house = House()
    async with house.agent() as agent:
        seen = notices(agent.session)
        agent.inject("by the way")
        await agent.wait_idle()
        assert types(agent.session) == ["inbox/accepted"]
        assert (agent.status, seen) == ("idle", [])


async def test_a_message_that_could_not_be_stored_is_accepted_all_the_same():
    """INB-05: whoever awaits its flush gets the error; the message is still pending here, and runs."""
    store, held = FaultyPersistence(MemoryPersistence()), Gate()
    house = House([[gate(held), say("one")], say("two")], persistence=store)
    async with house.agent() as agent:
        agent.send("one")
        await held.reached.wait()
        store.next("append", FailBefore(DOWN))
        second = agent.send("two")
        with pytest.raises(PersistenceUnavailable) as failed:
            await house.sessions.flush(agent.session)
        assert failed.value is DOWN
        assert list(agent.session.state.pending) == [second]
        held.open()
        outcome = await agent.wait(second)
        assert (outcome.reason, outcome.durable) == ("completed", True)
        assert (await store.inner.read("s")).events == agent.session.events


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ([{"type": "image", "size": float("nan")}], "/content/0/size"),
        ([{"type": "text", "text": "a"}, {"type": "image", "data": b"\0"}], "/content/1/data"),
    ],
)
async def test_content_that_cannot_be_stored_is_refused_with_its_path(content, path):
    """INB-06: and nothing is recorded."""
    async with House().agent() as agent:
        with pytest.raises(UnstorableValue) as refused:
            agent.send(content)
        assert refused.value.path == path
        assert types(agent.session) == []


@pytest.mark.parametrize("content", ["", []])
async def test_empty_content_is_refused(content):
    """INB-06: and nothing is recorded."""
    async with House().agent() as agent:
        for verb in (agent.send, agent.steer, agent.inject):
            with pytest.raises(ValueError, match="not empty"):
                verb(content)
        assert types(agent.session) == []


async def test_contexts_of_two_bodies_come_after_all_results_in_order_of_acceptance():
    """INB-09: the second body injects first, so its context is taken in first."""
    second_has = Gate()

    @tool(parallel_safe=True)
    async def first(execution: ToolExecution) -> str:
        await second_has()
        execution.inject("from the first")
        return "ok"

    @tool(parallel_safe=True)
    async def second(execution: ToolExecution) -> str:
        execution.inject("from the second")
        second_has.open()
        return "ok"

    house = House(steps=[[call("first", {}, id="c1"), call("second", {}, id="c2")], say("done")], tools=[first, second])
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert types(agent.session)[5:-5] == [
            *("chunk*", "assistant/message", "tool/call", "tool/call", "inbox/accepted", "inbox/accepted"),
            *("tool/result", "tool/result", "user/message", "user/message", "step/end"),
        ]
        assert taken(agent.session)[1:] == [(1, "from the second", "context"), (1, "from the first", "context")]


async def test_what_the_caller_changes_afterwards_is_not_seen():
    """INB-14: the log and the model get the content as it was when it was accepted."""
    content = [{"type": "text", "text": "original"}]
    meta = {"tags": ["a"]}
    house = House(steps=[say("one")])
    async with house.agent() as agent:
        message = agent.send(content, meta=meta)
        content[0]["text"] = "changed"
        content.append({"type": "text", "text": "added"})
        meta["tags"].append("b")
        await agent.wait(message)
        original = {"id": message, "content": [{"type": "text", "text": "original"}], "meta": {"tags": ["a"]}}
        assert data_of(agent.session, "inbox/accepted") == [{"message": original, "placement": "next_turn"}]
        assert data_of(agent.session, "user/message")[0]["message"] == original
        assert house.adapter.requests[0].messages == (UserMessage((TextBlock("original"),)),)


async def test_a_closed_agent_accepts_nothing():
    """INB-17: every verb says AgentClosed."""
    async with House().agent() as agent:
        await agent.close()
        for verb in (agent.send, agent.steer, agent.inject):
            with pytest.raises(AgentClosed):
                verb("too late")


async def test_an_agent_whose_session_was_taken_over_says_so():
    """INB-17: the verbs of an agent that was closed by a take-over raise what closed it."""
    house = House(steps=[say("one"), say("two")])
    async with house.agent() as agent:
        await agent.wait(agent.send("one"))
        other = House(persistence=house.persistence)
        await other.sessions.resume("s", force=True)
        with pytest.raises(SessionFenced):
            await agent.wait(agent.send("two"))
        with pytest.raises(SessionFenced):
            await agent.wait_idle()
        for verb in (agent.send, agent.steer, agent.inject):
            with pytest.raises(SessionFenced):
                verb("too late")


async def test_steering_by_an_observer_of_the_end_of_a_step_keeps_the_turn_going():
    """INB-18: the same turn has one more step."""
    house = House(steps=[say("one"), say("two")])
    async with house.agent() as agent:
        at(agent.session, "step/end", lambda: agent.steer("and now"))
        await agent.wait(agent.send("go"))
        await agent.wait_idle()
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", *FIRST_STEP, "inbox/accepted"),
            *("user/message", *STEP, "turn/end{completed}"),
        ]
        assert taken(agent.session) == [(1, "go", "next_turn"), (1, "and now", "next_step")]


async def test_steering_by_an_observer_of_the_end_of_a_turn_wakes_the_next():
    """INB-19: it comes too late for this one."""
    house = House(steps=[say("one"), say("two")])
    async with house.agent() as agent:
        at(agent.session, "turn/end", lambda: agent.steer("and now"))
        await agent.wait(agent.send("go"))
        await agent.wait_idle()
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", *FIRST_STEP, "turn/end{completed}", "inbox/accepted"),
            *("turn/start", "user/message", *STEP, "turn/end{completed}"),
        ]
        assert taken(agent.session) == [(1, "go", "next_turn"), (2, "and now", "next_step")]


async def test_steering_is_not_taken_in_by_a_turn_whose_request_failed():
    """INB-20: it wakes the next turn."""
    held = Gate()
    house = House(steps=[[gate(held), fail("AUTH")], say("two")])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        steering = agent.steer("faster")
        held.open()
        assert (await agent.wait(prompt)).reason == "error"
        assert (await agent.wait(steering)).turn == 2
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "inbox/accepted"),
            *("step/end", "turn/end{error AUTH}", "turn/start", "user/message", *STEP, "turn/end{completed}"),
        ]


async def test_a_turn_takes_the_contexts_and_one_message_that_wakes():
    """INB-28: in order of acceptance, the waking message last; each further one is a turn of its own."""
    house = House(steps=[say("one"), say("two")])
    async with house.agent() as agent:
        agent.inject("c1", id="c1")
        agent.send("m1", id="m1")
        agent.inject("c2", id="c2")
        agent.send("m2", id="m2")
        await agent.wait_idle()
        assert data_of(agent.session, "turn/start") == [
            {"turn": 1, "input": ["c1", "c2", "m1"]},
            {"turn": 2, "input": ["m2"]},
        ]
        assert [message[1] for message in taken(agent.session)] == ["c1", "c2", "m1", "m2"]


async def test_context_alone_forces_no_step():
    """INB-29: it is taken in at the end of the last step, and the turn ends there."""
    held = Gate()
    house = House(steps=[[say("one"), gate(held)]])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        agent.inject("by the way")
        held.open()
        assert (await agent.wait(prompt)).reason == "completed"
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "chunk*"),
            *("inbox/accepted", "chunk*", "assistant/message", "user/message", "step/end", "turn/end{completed}"),
        ]

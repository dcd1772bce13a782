"""What is dropped from the inbox, and what is not: pending messages, by a cancel or by their ids, each once."""

from __future__ import annotations

import pytest

from app.llm.scripted import call, gate, say
from app.session.errors import IllegalEvent
from app.tools.schema import tool
from app.tools.types import ToolExecution
from tests.support.gates import Gate
from tests.support.house import House, types
from tests.support.watching import at, data_of, taken

STEP = ["step/start", "chunk*", "assistant/message", "step/end"]


async def test_context_survives_the_cancelling_of_its_turn():
    """INB-10: it stays pending, and the next turn takes it."""
    held = Gate()
    house = House(steps=[gate(held), say("two")])
    async with house.agent() as agent:
        first = agent.send("go")
        await held.reached.wait()
        context = agent.inject("by the way")
        agent.cancel()
        assert (await agent.wait(first)).reason == "aborted"
        assert list(agent.session.state.pending) == [context]
        second = agent.send("again")
        await agent.wait(second)
        assert data_of(agent.session, "turn/start")[1]["input"] == [context, second]
        assert data_of(agent.session, "inbox/discarded") == []


async def test_a_body_that_injects_and_then_cancels_leaves_its_context_pending():
    """INB-10: there is no intake once the signal was set; the next turn takes the context before its prompt."""

    @tool
    async def act(execution: ToolExecution) -> str:
        execution.inject("by the way")
        agent.cancel()
        return "done"

    house = House(steps=[call("act", {}, id="c1"), say("two")], tools=[act])
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert taken(agent.session) == [(1, "go", "next_turn")]
        await agent.wait(agent.send("again"))
        assert taken(agent.session)[1:] == [(2, "by the way", "context"), (2, "again", "next_turn")]


async def test_cancelling_drops_the_queued_prompts():
    """INB-11: one event names what was pending and the cause; what the turn had taken is not among it."""
    held = Gate()
    house = House(steps=[gate(held)])
    async with house.agent() as agent:
        first, second = agent.send("one"), agent.send("two")
        await held.reached.wait()
        agent.cancel("changed my mind")
        assert (await agent.wait(first)).cause == "changed my mind"
        dropped = await agent.wait(second)
        await agent.wait_idle()
        assert (dropped.is_discarded, dropped.cause, dropped.turn) == (True, "changed my mind", None)
        assert data_of(agent.session, "inbox/discarded") == [{"ids": [second], "cause": "changed my mind"}]
        assert len(data_of(agent.session, "turn/start")) == 1


async def test_cancelling_may_keep_the_queued_prompts():
    """INB-12: nothing is discarded, and the queued prompt runs next."""
    held = Gate()
    house = House(steps=[gate(held), say("two")])
    async with house.agent() as agent:
        first, second = agent.send("one"), agent.send("two")
        await held.reached.wait()
        agent.cancel(keep_inbox=True)
        assert (await agent.wait(first)).reason == "aborted"
        assert (await agent.wait(second)).reason == "completed"
        assert data_of(agent.session, "inbox/discarded") == []
        assert taken(agent.session) == [(1, "one", "next_turn"), (2, "two", "next_turn")]


async def test_a_prompt_sent_while_a_cancelled_turn_closes_runs_next():
    """INB-23: the wake is not lost."""
    held = Gate()
    house = House(steps=[gate(held), say("two")])
    async with house.agent() as agent:
        prompts = [agent.send("one")]
        at(agent.session, "step/end", lambda: prompts.append(agent.send("two")))
        await held.reached.wait()
        agent.cancel()
        assert (await agent.wait(prompts[0])).reason == "aborted"
        assert (await agent.wait(prompts[1])).reason == "completed"
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "step/end"),
            *("inbox/accepted", "turn/end{aborted}", "turn/start", "user/message", *STEP, "turn/end{completed}"),
        ]


async def test_a_second_cancel_drops_the_prompt_sent_while_the_first_was_closing():
    """INB-24: no turn runs for it."""
    held = Gate()
    house = House(steps=[gate(held)])
    async with house.agent() as agent:
        prompts = [agent.send("one")]
        at(agent.session, "step/end", lambda: prompts.append(agent.send("two")))
        at(agent.session, "turn/end", lambda: agent.cancel("again"))
        await held.reached.wait()
        agent.cancel("first")
        await agent.wait_idle()
        assert (await agent.wait(prompts[0])).cause == "first"
        assert (await agent.wait(prompts[1])).is_discarded
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "step/end"),
            *("inbox/accepted", "turn/end{aborted}", "inbox/discarded"),
        ]
        assert data_of(agent.session, "inbox/discarded") == [{"ids": [prompts[1]], "cause": "again"}]


async def test_a_message_is_discarded_once():
    """INB-30: discarding it again names what is not pending, and raises."""
    house = House()
    async with house.agent() as agent:
        prompt = agent.send("go")
        agent.discard([prompt], "not needed")
        with pytest.raises(IllegalEvent) as refused:
            agent.discard([prompt])
        assert prompt in str(refused.value)
        await agent.wait_idle()
        assert types(agent.session) == ["inbox/accepted", "inbox/discarded"]
        assert data_of(agent.session, "inbox/discarded") == [{"ids": [prompt], "cause": "not needed"}]

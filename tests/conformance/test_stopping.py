"""Who ended a turn, and what a stop keeps: the first cause is told, and what is pending waits for the next process."""

from __future__ import annotations

import asyncio

import pytest

from app.agent.step import Step
from app.llm.scripted import call, gate, say
from app.middleware import Named
from app.tools.schema import tool
from app.tools.types import ToolExecution
from tests.support.gates import Gate
from tests.support.house import House, types
from tests.support.stores import Place
from tests.support.virtual_time import all_quiet, virtual_time
from tests.support.watching import data_of

OPEN = ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header"]
ABORTED = ["step/end", "turn/end{aborted}"]


async def test_the_first_cause_stays():
    """CAN-24: on the signal and in the one `turn/end`, whatever is asked for later."""
    held = Gate()
    causes: list[str | None] = []

    @tool
    async def act(execution: ToolExecution) -> str:
        await held()
        causes.append(execution.signal.cause)
        return "done"

    house = House(steps=[call("act", {}, id="c1")], tools=[act])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        agent.cancel("first")
        agent.cancel("second")
        held.open()
        assert (await agent.wait(prompt)).cause == "first"
        assert causes == ["first"]
        assert data_of(agent.session, "turn/end") == [{"turn": 1, "reason": "aborted", "cause": "first"}]


@virtual_time
async def test_a_stop_after_a_cancel_does_not_change_its_cause():
    """CAN-24: the turn was cancelled by the user, and says so once."""
    held = Gate()

    @tool
    async def act(execution: ToolExecution) -> str:
        await held()
        return execution.signal.cause or ""

    house = House(steps=[call("act", {}, id="c1")], tools=[act])
    async with house.agent() as agent:
        agent.send("go")
        await held.reached.wait()
        agent.cancel("first")
        closing = asyncio.create_task(agent.close())
        await all_quiet()
        held.open()
        await closing
        assert data_of(agent.session, "turn/end") == [{"turn": 1, "reason": "aborted", "cause": "first"}]


@pytest.mark.parametrize("placement", ["next_turn", "next_step"])
async def test_what_the_signal_wakes_may_send_and_is_heard(placement):
    """CAN-28: what is sent or steered by something that waited for the signal survives, and runs next."""
    held = Gate()
    sent: list[str] = []

    @tool
    async def act(execution: ToolExecution) -> str:
        held.reached.set()
        await execution.signal.wait()
        sent.append(agent.accept("after all", placement))
        return "done"

    house = House(steps=[call("act", {}, id="c1"), say("two")], tools=[act])
    async with house.agent() as agent:
        first, queued = agent.send("go"), agent.send("queued")
        await held.reached.wait()
        agent.cancel()
        assert (await agent.wait(first)).reason == "aborted"
        assert (await agent.wait(queued)).is_discarded
        assert (await agent.wait(sent[0])).turn == 2
        assert data_of(agent.session, "turn/start")[1:] == [{"turn": 2, "input": sent}]


@virtual_time
async def test_stopping_during_the_listeners_closes_the_turn_durably():
    """CAN-26: the step and the turn end with the cause `shutdown`, and that is stored."""
    held = Gate()

    async def listen(step: Step) -> None:
        await held()

    house = House(steps=[say("one")], listeners_above=[Named("listen", listen)])
    async with house.agent() as agent:
        agent.send("go")
        await held.reached.wait()
        stopping = asyncio.create_task(house.agents.close())
        await all_quiet()
        held.open()
        await stopping
        assert types(agent.session) == [*OPEN, "chunk*", "assistant/message", *ABORTED]
        assert data_of(agent.session, "turn/end") == [{"turn": 1, "reason": "aborted", "cause": "shutdown"}]
        assert (await house.persistence.read("s")).events == agent.session.events


async def test_stopping_keeps_the_prompts_that_are_pending(place: Place):
    """CAN-33: the running turn is aborted; what waits stays pending in the store, for whoever resumes."""
    held = Gate()
    house = House([gate(held)], persistence=place.persistence())
    async with house.agent() as agent:
        agent.send("one")
        await held.reached.wait()
        second, third = agent.send("two"), agent.send("three")
        await house.agents.close()
        assert types(agent.session) == [*OPEN, "inbox/accepted", "inbox/accepted", *ABORTED]
        assert data_of(agent.session, "turn/end") == [{"turn": 1, "reason": "aborted", "cause": "shutdown"}]
    async with House([say("two"), say("three")], persistence=place.persistence()).resumed() as agent:
        assert agent.session.closers == ()
        assert list(agent.session.state.pending) == [second, third]
        await agent.wait_idle()
        assert data_of(agent.session, "turn/start")[1:] == [
            {"turn": 2, "input": [second]},
            {"turn": 3, "input": [third]},
        ]

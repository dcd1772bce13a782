"""What is left of an agent whose closing took too long: nothing that runs, and a log for recovery."""

import asyncio

import pytest

from app.llm.scripted import call
from app.session.errors import AgentClosed
from tests.support.gates import Gate
from tests.support.house import House, types


async def test_a_closing_that_is_cut_short_leaves_no_task():
    """A body that ignores the signal for ever; what was recorded before it is all that the log holds of it."""
    never = Gate()

    async def stubborn() -> None:
        """Never end."""
        await never()

    house = House([call("stubborn", {}, id="c1")], tools=[stubborn])
    await house.persistence.open()
    others = asyncio.all_tasks()
    agent = await house.agents.create("s")
    agent.send("go")
    await never.reached.wait()
    closing = asyncio.create_task(house.agents.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert asyncio.all_tasks() == others
    stored = await house.sessions.read_from("s", 0)
    assert [event.type for event in stored] == [
        "inbox/accepted", "turn/start", "user/message", "step/start", "request/header",
        "assistant/chunk", "assistant/chunk", "assistant/message", "tool/call",
    ]  # fmt: skip
    assert types(agent.session)[-2:] == ["tool/call", "tool/result"]
    await house.persistence.close()


async def test_no_agent_is_made_once_closing_has_begun():
    house = House()
    async with house.opened():
        await house.agents.close()
        with pytest.raises(AgentClosed):
            await house.agents.create("s")
        with pytest.raises(AgentClosed):
            await house.agents.resume("s")

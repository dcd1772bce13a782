"""Cancelling where nobody thought of it: at random points of turns that use tools, on every durable store."""

from __future__ import annotations

import asyncio
from asyncio import Task
from random import Random
from typing import Any

import pytest

from app.agent.agent import Agent
from app.agent.outcome import Outcome
from app.llm.scripted import Step as Answer
from app.llm.scripted import call, say
from app.llm.types import LlmRequest
from app.messages import UserMessage
from app.session.ownership import Owner
from app.session.session import Session
from app.tools.schema import tool
from app.tools.types import ToolExecution
from tests.support.house import House, types
from tests.support.stores import Place
from tests.support.watching import data_of, is_balanced, results

PROMPTS = 2


class Effects:
    """Tools whose bodies take a while, some of them together, one in a thread; `done` are the calls that acted."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.tools = [
            tool(self._act, name="alone"),
            tool(self._act, name="safe", parallel_safe=True),
            tool(self._act_in_thread, name="thread", parallel_safe=True),
        ]

    async def _act(self, execution: ToolExecution) -> str:
        self.done.append(execution.call_id)
        for _ in range(3):
            await asyncio.sleep(0)
        return execution.call_id

    def _act_in_thread(self, execution: ToolExecution) -> str:
        self.done.append(execution.call_id)
        return execution.call_id


def answer(request: LlmRequest) -> list[Any]:
    """Text and four calls for a prompt, text for results."""
    if isinstance(request.messages[-1], UserMessage):
        names = ("safe", "thread", "alone", "safe")
        return [say("let me see", chunks=4), *(call(name, {}) for name in names)]
    return [say("so it is", chunks=4)]


def house_at(place: Place, effects: Effects) -> House:
    return House([Answer(answer, repeat=True)], effects.tools, place.persistence(), Owner("test"), max_parallel_tools=2)


class Point:
    """Somewhere in a run: so many events after it began, and then so many rounds of the event loop."""

    def __init__(self, session: Session, random: Random) -> None:
        self._event = random.randrange(65)
        self._rounds = random.randrange(12)
        self._session = session
        self._reached = asyncio.Event()
        session.observe(lambda told: self._look())

    def _look(self) -> None:
        if len(self._session) >= self._event:
            self._reached.set()

    async def come(self) -> None:
        self._look()
        await self._reached.wait()
        for _ in range(self._rounds):
            await asyncio.sleep(0)


def bodies_that_should_have_run(session: Session) -> list[str]:
    """The calls whose results say that a body was entered."""
    return [call_id for call_id, result in results(session) if result != "ABORTED_BEFORE_DISPATCH"]


async def cancel_at(point: Point, agent: Agent) -> None:
    await point.come()
    agent.cancel(keep_inbox=True)


async def test_a_turn_cancelled_anywhere_leaves_a_balanced_log_that_is_stored(durable_place: Place):
    """RND-01: at 200 random points: no open call, stored equals live, and each body ran as its result says."""
    effects, random, ends = Effects(), Random(1), list[str]()
    house = house_at(durable_place, effects)
    async with house.opened():
        for number in range(200):
            agent = await house.agents.create(f"s{number}")
            point = Point(agent.session, random)
            for text in range(PROMPTS):
                agent.send(f"prompt {text}")
            await asyncio.gather(cancel_at(point, agent), agent.wait_idle())
            assert is_balanced(agent.session)
            assert (await house.persistence.read(agent.session.id)).events == agent.session.events
            assert sorted(effects.done) == sorted(bodies_that_should_have_run(agent.session))
            assert [data["reason"] for data in data_of(agent.session, "turn/end")].count("aborted") <= 1
            ends += [name for name in types(agent.session) if name.startswith("turn/end")]
            effects.done.clear()
            await agent.close()
    assert set(ends) == {"turn/end{completed}", "turn/end{aborted}"}
    assert ends.count("turn/end{aborted}") > 100  # the others came after the last turn


async def first_of(point: Point, driver: asyncio.Task[None]) -> None:
    """Return at the point, or when the driver has ended before."""
    coming = asyncio.create_task(point.come())
    await asyncio.wait((coming, driver), return_when=asyncio.FIRST_COMPLETED)
    coming.cancel()


async def end_every_other_task() -> None:
    """What the end of an event loop does."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)


async def cancel_driver(agent: Agent, points: list[Point]) -> Task[Outcome]:
    """Cancel the task that runs the turns at each of the points, and wait for its end. Returns a waiter's task."""
    messages = [agent.send(f"prompt {text}") for text in range(PROMPTS)]
    driver = agent._driver
    assert driver is not None
    waiting = asyncio.create_task(agent.wait(messages[0]))
    was_running = False
    for point in points:
        await first_of(point, driver)
        was_running = driver.cancel() or was_running
    await asyncio.wait((driver,))
    assert driver.cancelled() is was_running
    return waiting


@pytest.mark.parametrize("times", [1, 2])
async def test_a_driver_cancelled_anywhere_closes_its_turn_or_leaves_it_to_recovery(durable_place: Place, times: int):
    """RND-03: its turn ends with the cause `shutdown` and is stored, or recovery closes it; no commit is ever lost."""
    random, causes = Random(times), list[str | None]()
    for number in range(50):
        house, session_id = house_at(durable_place, Effects()), f"s{number}"
        await house.persistence.open()
        agent = await house.agents.create(session_id)
        waiting = await cancel_driver(agent, [Point(agent.session, random) for _ in range(times)])
        live, durable = agent.session, agent.session.durable
        if times == 1:
            assert is_balanced(live)
            causes += [data.get("cause") for data in data_of(live, "turn/end")]
            if live.state.turn.turn:
                assert durable == len(live)
                assert waiting.done()
        await end_every_other_task()
        stored = (await house.persistence.read(session_id)).events if live.durable else ()
        assert len(stored) >= durable
        assert stored == live.events[: len(stored)]
        await house.persistence.close()

        if stored:
            again = house_at(durable_place, Effects())
            async with again.resumed(session_id, force=True) as agent:
                assert agent.session.events[: len(stored)] == stored
                assert is_balanced(agent.session)
                await agent.wait_idle()
                assert (await agent.wait(agent.send("and now"))).reason == "completed"
                assert (await again.persistence.read(session_id)).events == agent.session.events
    if times == 1:
        assert set(causes) == {None, "shutdown"}


async def test_a_driver_cancelled_before_it_began_has_done_nothing(durable_place: Place):
    """RND-03: the agent can be closed, and the prompt is pending for whoever resumes the session."""
    async with house_at(durable_place, Effects()).agent() as agent:
        prompt = agent.send("go")
        assert agent._driver is not None
        agent._driver.cancel()
        await agent.wait_idle()
        await agent.close()
        assert types(agent.session) == ["inbox/accepted"]
    async with house_at(durable_place, Effects()).resumed() as agent:
        assert (await agent.wait(prompt)).reason == "completed"

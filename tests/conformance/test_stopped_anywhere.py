"""A turn stopped between any two callbacks of its event loop, one after the other, in each way there is to stop one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from app.agent.agent import Agent
from app.llm.scripted import Step as Answer
from app.llm.scripted import call, fail, say
from app.llm.strict import check_provider_valid
from app.llm.types import LlmRequest
from app.messages import TextBlock, UserMessage
from app.middleware import Named
from app.session.log_state import IDLE
from app.tools.schema import tool
from app.tools.types import Allow, ToolExecution
from persistence.memory import MemoryPersistence
from policy.checkpoint import EveryEventCheckpointPolicy, SemanticCheckpointPolicy
from tests.support.counting import count
from tests.support.faults import FaultyPersistence
from tests.support.house import House
from tests.support.lives import Disk
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.watching import data_of, is_balanced, results, unhandled_errors

ABD = "ABORTED_BEFORE_DISPATCH"


class _Ready(deque[Any]):
    """The callbacks that an event loop is about to run; `before` is called before each of them."""

    before: Callable[[], None]

    def popleft(self) -> Any:
        self.before()
        return super().popleft()


class InterruptedLoop(VirtualTimeLoop):
    """Calls `act` once, in no task, when so many callbacks have run since it was armed."""

    def __init__(self) -> None:
        super().__init__()
        self._ready = _Ready()  # where asyncio keeps them
        self._ready.before = self._count
        self._left = 0
        self._act: Callable[[], object] | None = None

    def arm(self, callbacks: int, act: Callable[[], object]) -> None:
        self._left, self._act = callbacks, act

    def has_acted(self) -> bool:
        return self._act is None

    def _count(self) -> None:
        self._left -= 1
        if self._act is not None and self._left < 0:
            act, self._act = self._act, None
            act()


class Scene:
    """Two prompts, the first of which fails once, uses tools together, alone and nested, is steered, and goes on.

    `entered` are the calls whose bodies began, `late` what was begun for a turn that had been told to stop, or at all
    when everything `is_over`.
    """

    def __init__(self, policy: Any, store: FaultyPersistence) -> None:
        self.entered: list[str] = []
        self.late: list[str] = []
        self.is_over = False
        self._has_failed = False
        tools = [tool(self._act, name="safe", parallel_safe=True), tool(self._act_through, name="alone")]
        self.house = House(
            [Answer(self._answer, repeat=True)],
            tools,
            store,
            policy=policy,
            policies=[Named("think", self._think)],
            listeners_above=[Named("listen", self._listen)],
            max_parallel_tools=2,
        )
        self.store = store

    async def _act(self, rounds: int, execution: ToolExecution) -> int:
        self._enter(execution)
        for _ in range(rounds):
            await asyncio.sleep(0)
        execution.inject("by the way")
        return rounds

    async def _act_through(self, execution: ToolExecution) -> int:
        self._enter(execution)
        await execution.execute_nested("safe", {"rounds": 1})
        execution.steer("faster")
        return 0

    def _enter(self, execution: ToolExecution) -> None:
        if execution.parent is None:
            self.entered.append(execution.call_id)
        if execution.signal.is_cancelled or self.is_over:
            self.late.append(execution.call_id)

    async def _think(self, execution: ToolExecution) -> Allow:
        await asyncio.sleep(0)
        return Allow()

    async def _listen(self, step: object) -> None:
        await asyncio.sleep(0)

    def _answer(self, request: LlmRequest) -> list[Any]:
        assert request.signal is not None
        if request.signal.is_cancelled or self.is_over:
            self.late.append("the model")
        if request.messages[-1] != UserMessage((TextBlock("first"),)):
            return [say("so it is", chunks=2)]
        if not self._has_failed:
            self._has_failed = True
            return [say("hm"), fail("SERVER")]
        together, last = [call("safe", {"rounds": 4}), call("safe", {"rounds": 1})], call("safe", {"rounds": 1})
        return [say("let me see", chunks=2), *together, call("alone"), last]


def cancel(scene: Scene, agent: Agent) -> None:
    agent.cancel("enough", keep_inbox=True)


def cancel_driver(scene: Scene, agent: Agent) -> None:
    if agent._driver is not None:
        agent._driver.cancel()


def close(scene: Scene, agent: Agent) -> object:
    return asyncio.get_running_loop().create_task(agent.close())


def abandon(scene: Scene, agent: Agent) -> object:
    """What is left to do when closing takes too long."""

    async def abandoning() -> None:
        await agent.abandon()
        scene.is_over = True

    return asyncio.get_running_loop().create_task(abandoning())


def end_every_task(scene: Scene, agent: Agent) -> None:
    """What the end of an event loop does, but for the test's own task."""
    scene.is_over = True
    for task in asyncio.all_tasks():
        if task.get_name() != "the test":
            task.cancel()


Way: TypeAlias = Callable[[Scene, Agent], object]
CLOSES: dict[Way, str] = {cancel: "enough", cancel_driver: "shutdown", close: "shutdown"}
"""What closes an open turn, and the cause that its end then tells. The others leave it to recovery."""


async def stopped_at(callbacks: int, way: Way, policy: Any) -> bool:
    """Stop the scene there, check what is left of it, and resume it. False if it was over before that."""
    asyncio.current_task().set_name("the test")  # type: ignore[union-attr]  # there is one
    loop = asyncio.get_running_loop()
    assert isinstance(loop, InterruptedLoop)
    store = Disk(MemoryPersistence(lease_clock=loop.time))
    scene, reported = Scene(policy, store), unhandled_errors()
    agent = await scene.house.agents.create("s")
    session = agent.session
    open_turn = told_at = 0

    def act() -> None:
        nonlocal open_turn, told_at
        open_turn = session.state.turn.turn if session.state.turn.state != IDLE else 0
        told_at = len(session)
        way(scene, agent)

    messages = [agent.send("first"), agent.send("second")]
    loop.arm(callbacks, act)
    await asyncio.sleep(1)  # all that can happen happens
    if not loop.has_acted():
        return False
    await asyncio.sleep(1)

    assert (scene.late, reported) == ([], [])
    assert asyncio.all_tasks() == {asyncio.current_task()}
    stored = (await store.read("s")).events if store.written else ()
    assert stored == session.events[: len(stored)]
    assert len(stored) >= session.durable
    if way in CLOSES:
        assert is_balanced(session)
        assert stored == session.events or not session.state.turn.turn
        assert [call_id for call_id, result in results(session) if result != ABD] == scene.entered
        ends = [(data["reason"], data.get("cause")) for data in data_of(session, "turn/end")]
        assert set(ends) <= {("completed", None), ("aborted", CLOSES[way])}
    if way is cancel:
        assert not open_turn or ends[open_turn - 1] == ("aborted", "enough")
        later = [event.type for event in session.events_from(told_at) if event.data.get("turn") == open_turn]
        assert not {"user/message", "step/start", "request/header", "llm/retry"} & set(later)
        assert [(await agent.wait(message)).turn for message in messages] == [1, 2]
    if store.written:
        await resume(scene, messages)
    return True


async def resume(scene: Scene, messages: list[str]) -> None:
    """Another process takes what is stored: it balances, and every message that is there gets its turn."""
    again = Scene(SemanticCheckpointPolicy, scene.store)
    stored = (await scene.store.read("s")).events
    agent = await again.house.agents.resume("s", force=True)
    assert agent.session.events[: len(stored)] == stored
    await agent.wait_idle()
    assert (await agent.wait(agent.send("and now"))).reason == "completed"
    assert is_balanced(agent.session)
    check_provider_valid(agent.session.messages)
    assert not set(scene.entered) & set(again.entered)
    turns = [data["turn"] for data in data_of(agent.session, "turn/start")]
    assert turns == list(range(1, len(turns) + 1))
    assert [(await agent.wait(message)).turn for message in messages] == [1, 2]
    await agent.close()


@pytest.mark.parametrize("policy", [SemanticCheckpointPolicy, EveryEventCheckpointPolicy], ids=["semantic", "every"])
@pytest.mark.parametrize("way", [cancel, cancel_driver, close, abandon, end_every_task])
def test_a_turn_stopped_anywhere_starts_nothing_more_and_loses_nothing(way: Way, policy: Any):
    """CAN-06, RND-03: nothing late, no task left, what is stored is a beginning of what was live, and it goes on."""
    callbacks = 0
    while True:
        with asyncio.Runner(loop_factory=InterruptedLoop) as runner:
            if not runner.run(stopped_at(callbacks, way, policy)):
                break
        callbacks += 1
    count("turns stopped between two callbacks of their loop", runs=callbacks)
    assert callbacks > 100

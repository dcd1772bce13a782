"""One session over several lives: each has live objects of its own, all have one disk, and an end comes without notice.

What leaves a process is looked at as it leaves: `World.faults` is what should not have happened.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from app.agent.agent import Agent
from app.llm.script import Parts
from app.llm.scripted import ScriptedAdapter, Step, say
from app.llm.strict import check_provider_valid
from app.llm.types import ChunkStream, LlmError, LlmRequest
from app.messages import StreamChunk
from app.middleware import Named
from app.session.record import SessionEvent
from app.session.recovery import Completed, NotStarted, Reconciled, RecordedCall
from app.tools.types import Allow, Deny, Effects, ToolExecution
from persistence.memory import MemoryPersistence
from tests.support.faults import FaultyPersistence
from tests.support.house import House

T = TypeVar("T")


class World:
    """What outlives a process: the disk, and what has left it. Nothing may leave for a session that is not on the disk.

    `answers` are those that the model gives next; it says "ok" when there is none. `entered` counts bodies by call id,
    `running` are the tools whose bodies run now, `asked` has the request of each turn and step.
    """

    def __init__(self, **house: Any) -> None:
        self.disk = MemoryPersistence(lease_clock=lambda: asyncio.get_running_loop().time())
        self.answers: deque[Parts] = deque()
        self.entered: Counter[str] = Counter()
        self.running: list[str] = []
        self.asked: dict[tuple[int, int], LlmRequest] = {}
        self.faults: list[str] = []
        self.house = house

    async def stored(self) -> tuple[SessionEvent, ...]:
        """What a new process would find."""
        return (await self.disk.read("s")).events if await self.disk.list(1) else ()

    async def must_hold(self, what: str, type: str, **data: Any) -> None:
        """Something leaves now: this event has to be stored by now."""
        latest_first = (event.data for event in reversed(await self.stored()) if event.type == type)
        if not any(event.items() >= data.items() for event in latest_first):
            self.faults.append(f"{what} before its {type} was durable")


class Disk(FaultyPersistence):
    """The disk as one process sees it: each call takes a round of the loop before it is done, and one after."""

    is_gone = False

    async def _do(self, name: Any, call: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(0)
        if self.is_gone:
            raise asyncio.CancelledError
        done = await super()._do(name, call)
        await asyncio.sleep(0)
        return done


@dataclass
class Acts:
    """A tool whose arguments say what its body does: `rounds` of the loop, and `then`."""

    world: World
    name: str
    can_tell: bool = False
    description: str = ""
    effects: Effects = "side_effect"
    timeout_s: float | None = None
    input_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})

    @property
    def reconcile(self) -> Callable[[RecordedCall], Awaitable[Reconciled]] | None:
        return self._look if self.can_tell else None

    async def _look(self, call: RecordedCall) -> Reconciled:
        await asyncio.sleep(0)
        return Completed("seen") if self.world.entered[call.call_id] else NotStarted()

    def is_parallel_safe(self, arguments: Any) -> object:
        return self.name != "alone"

    def validate(self, arguments: Any) -> Any:
        return arguments

    def to_json(self, value: Any) -> Any:
        return value

    async def run(self, arguments: Any, execution: ToolExecution) -> Any:
        if execution.signal.is_cancelled:
            self.world.faults.append(f"body of {execution.call_id} after the turn was cancelled")
        if execution.parent is not None:
            return await self._act(arguments, execution)
        self.world.entered[execution.call_id] += 1
        await self.world.must_hold(f"body of {execution.call_id}", "tool/call", call_id=execution.call_id)
        if self.world.running and "alone" in (self.name, *self.world.running):
            self.world.faults.append(f"body of {execution.call_id} beside another, and one of them runs alone")
        self.world.running.append(self.name)
        try:
            return await self._act(arguments, execution)
        finally:
            self.world.running.remove(self.name)

    async def _act(self, arguments: Any, execution: ToolExecution) -> Any:
        for _ in range(arguments["rounds"]):
            await asyncio.sleep(0)
        match arguments["then"]:
            case "raise":
                raise ValueError("no")
            case "cancelled":
                raise asyncio.CancelledError
            case "inject":
                execution.inject("by the way")
            case "steer":
                execution.steer("faster")
            case "nested":
                await execution.execute_nested("safe", {"rounds": 1, "then": "value"})
        return "done"


class _Watching(ScriptedAdapter):
    """Answers as planned, and looks at what it is asked."""

    def __init__(self, world: World) -> None:
        super().__init__([Step(lambda request: world.answers.popleft() if world.answers else say("ok"), repeat=True)])
        self._world = world

    def stream(self, request: LlmRequest) -> ChunkStream:
        assert request.session is not None
        turn = request.session.state.turn
        self._world.asked[turn.turn, turn.step] = replace(request, session=None, signal=None)
        try:
            check_provider_valid(request.messages)
        except LlmError as error:
            self._world.faults.append(str(error))
        return self._looked_at(request, turn.turn, turn.step)

    async def _looked_at(self, request: LlmRequest, turn: int, step: int) -> AsyncGenerator[StreamChunk, None]:
        await self._world.must_hold("the model was asked", "step/start", turn=turn, step=step)
        stream = super().stream(request)
        try:
            async for chunk in stream:
                await asyncio.sleep(0)
                yield chunk
        finally:
            await stream.aclose()


class Life:
    """One process, from its start to its end."""

    agent: Agent

    def __init__(self, world: World) -> None:
        self.disk = Disk(world.disk)
        self.listener_fails = False
        self.house = House(
            tools=[Acts(world, "safe"), Acts(world, "alone"), Acts(world, "sure", can_tell=True)],
            persistence=self.disk,
            adapters=[_Watching(world)],
            policies=[Named("think", self._think)],
            listeners_above=[Named("listen", self._listen)],
            **world.house,
        )

    async def _think(self, execution: ToolExecution) -> Allow | Deny:
        await asyncio.sleep(0)
        return Deny("no") if execution.arguments["then"] == "denied" else Allow()

    async def _listen(self, step: object) -> None:
        await asyncio.sleep(0)
        fails, self.listener_fails = self.listener_fails, False
        if fails:
            raise RuntimeError("a bad listener")

    async def end(self) -> None:
        """As by SIGKILL: nothing more reaches the disk, and every task but this one is gone."""
        self.disk.is_gone = True
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)

"""A service process of the simulated world: the real runtime, a model and tools that take their time, and people."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from app.agent.agent import Agent
from app.llm.types import LlmError, LlmRequest
from app.messages import Failure, Finish, StreamChunk, TextDelta, ToolCallDelta
from app.middleware import Named
from app.session.drain import DrainLimits
from app.session.errors import SessionError, SessionHeld, SessionNotFound
from app.session.ownership import Owner
from app.tools.schema import tool
from app.tools.types import ToolError, ToolExecution
from policy.checkpoint import EveryEventCheckpointPolicy, SemanticCheckpointPolicy
from policy.guard import REPEAT_UNKNOWN, refuse_repeat_of_unknown
from policy.retry import BackoffRetryPolicy
from tests.simulation.ledger import Ledger
from tests.simulation.store import Client, Server
from tests.support.house import House

LEASE_S = 10.0
DEEDS = ("send", "steer", "inject", "cancel", "discard", "copy", "wait", "sleep", "idle")
HOW_OFTEN = (5, 2, 2, 0.7, 0.5, 0.5, 4, 4, 3)
Fate: TypeAlias = Literal["asked for", "there", "to go", "gone"]


@dataclass
class Promises:
    """What people were told: the ids of messages that were acknowledged, and what became of copies of the session."""

    acknowledged: list[str] = field(default_factory=list)
    copies: dict[str, Fate] = field(default_factory=dict)


class Model:
    """Answers by lot: text, calls, nothing at all, a failure; a chunk now and then."""

    name = "model"

    def __init__(self, lots: random.Random, ledger: Ledger) -> None:
        self._lots = lots
        self._ledger = ledger
        self._calls = 0

    async def stream(self, request: LlmRequest) -> AsyncGenerator[StreamChunk, None]:
        self._ledger.note_request(request)
        lots = self._lots
        kind = lots.choices(["text", "calls", "fails", "breaks", "empty"], [5, 6, 1, 1, 0.3])[0]
        await asyncio.sleep(lots.expovariate(2))
        if kind == "fails":
            raise LlmError(Failure("too many requests", lots.choice(["RATE_LIMIT", "SERVER", "AUTH"])))
        for _ in range(lots.randrange(3) if kind != "empty" else 0):
            yield TextDelta(0, "word ")
            await asyncio.sleep(lots.expovariate(5))
        if kind == "breaks":
            return
        if kind == "calls":
            for place in range(lots.randint(1, 3)):
                self._calls += 1
                name = lots.choice(["act", "act", "look", "look", "delegate", "ask", "gone"])
                yield ToolCallDelta(place + 1, "{}", f"call {lots.getrandbits(40):x}", name)
        elif kind == "text":
            yield TextDelta(0, "done")
        yield Finish("max_tokens" if lots.random() < 0.03 else "stop")


class Service:
    """One process: it takes the session, and lives until it ends or is ended."""

    def __init__(self, name: str, server: Server, ledger: Ledger, promises: Promises, lots: random.Random) -> None:
        self._server = server
        self._ledger = ledger
        self._promises = promises
        self._lots = lots
        self._name = name
        time = asyncio.get_running_loop().time
        self.house = House(
            tools=TOOLS,
            persistence=Client(server),
            owner=Owner(name, LEASE_S),
            clock=lambda: 1_750_000_000_000 + int(time() * 1000),
            policy=lots.choice([SemanticCheckpointPolicy, SemanticCheckpointPolicy, EveryEventCheckpointPolicy]),
            drain_limits=DrainLimits(
                max_batch_events=lots.choice([2, 5000]),
                write_behind_ms=lots.choice([None, 200]),
                flush_timeout_ms=3_000,
            ),
            adapters=[Model(lots, ledger)],
            guards=[Named(REPEAT_UNKNOWN, refuse_repeat_of_unknown)] if lots.random() < 0.3 else [],
            max_parallel_tools=lots.choice([1, 2, 10]),
            lease_margin_s=2.0,
            retry=BackoffRetryPolicy(base_ms=100),
        )
        self.house.agents.config = self.house.agents.config.__class__("model", "m")

    # ---------------------------------------------------------------------------------------- what its tools do

    async def delegate(self, execution: ToolExecution) -> str:
        self._ledger.note_entered(execution)
        await execution.execute_nested("act", {})
        if self._lots.random() < 0.5:
            execution.steer("one thing more")
        await execution.execute_nested("look", {})
        self._ledger.ended[execution.call_id] += 1
        return f"{execution.call_id} is done"

    async def do(self, execution: ToolExecution, rate: float = 2.0) -> str:
        self._ledger.note_entered(execution)
        await asyncio.sleep(self._lots.expovariate(rate))
        if self._lots.random() < 0.1:
            raise ToolError("NO_LUCK", "it did not work")
        self._ledger.ended[execution.call_id] += 1
        return f"{execution.call_id} is done"

    # ---------------------------------------------------------------------------------------- a life

    async def live(self, deeds: int) -> None:
        """Take the session, do so many things with it, and stop in good order. Ends early when it is lost or closed."""
        _here.set(self)
        try:
            async with self.house.opened():
                agent = await self._enter()
                for _ in range(deeds):
                    await self._deed(agent)
        except SessionError:  # an error of the runtime's ends a service process; what matters is what it leaves behind
            return

    async def finish(self) -> None:
        """Take the session whoever has it, and work until nothing is owed."""
        _here.set(self)
        async with self.house.opened():
            try:
                agent = await self.house.agents.resume("s", force=True)
            except SessionNotFound:
                return
            await agent.wait_idle()

    async def _enter(self) -> Agent:
        for _ in range(20):
            try:
                return await self.house.agents.resume("s", force=self._lots.random() < 0.1)
            except SessionHeld as held:
                await asyncio.sleep(max(held.seconds_left or 0, 0) + 0.001)
            except SessionNotFound:
                return await self.house.agents.create("s")
        return await self.house.agents.resume("s", force=True)

    async def _deed(self, agent: Agent) -> None:
        lots = self._lots
        deed = lots.choices(DEEDS, HOW_OFTEN)[0]
        self._server.happened[deed] += 1
        match deed:
            case "cancel":
                agent.cancel(keep_inbox=lots.random() < 0.5)
            case "discard":
                agent.discard([message_id for message_id in agent.session.state.pending if lots.random() < 0.5])
            case "copy":
                await self._copy()
            case "wait":
                await asyncio.sleep(lots.expovariate(1))
            case "sleep":
                await asyncio.sleep(lots.expovariate(10))
            case "idle":
                await agent.wait_idle()
            case verb:
                message_id = getattr(agent, verb)(f"please {lots.randrange(100)}", id=f"m{lots.getrandbits(40):x}")
                if lots.random() < 0.5:
                    await self.house.sessions.flush(agent.session)
                    self._promises.acknowledged.append(message_id)

    async def _copy(self) -> None:
        """Fork the session where its last turn ended, and perhaps delete the copy again."""
        sessions, copies, copy = self.house.sessions, self._promises.copies, f"copy {self._lots.getrandbits(40):x}"
        try:
            copies[copy] = "asked for"
            await sessions.fork("s", new_id=copy)
            copies[copy] = "there"
            if self._lots.random() < 0.5:
                copies[copy] = "to go"
                await sessions.delete(copy)
                copies[copy] = "gone"
        except SessionError:  # there is nothing to copy yet, or nobody knows what became of it
            return


_here: contextvars.ContextVar[Service] = contextvars.ContextVar("service")
"""The service whose tool runs: tools are made once, since to make their schemas takes as long as half a life."""


@tool
async def act(execution: ToolExecution) -> str:
    """Change the world."""
    return await _here.get().do(execution)


@tool(effects="read_only", parallel_safe=True)
async def look(execution: ToolExecution) -> str:
    """Look at the world."""
    return await _here.get().do(execution)


@tool(effects="idempotent")
async def delegate(execution: ToolExecution) -> str:
    """Have others act, and say something besides."""
    return await _here.get().delegate(execution)


@tool(timeout_s=5.0)
async def ask(execution: ToolExecution) -> str:
    """Wait for somebody, perhaps too long."""
    return await _here.get().do(execution, 0.5)


TOOLS = [act, look, delegate, ask]

"""The runtime put together by hand for a test: real parts, a scripted model, a clock that stands still unless moved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from app.agent.agent import Agent
from app.agent.agents import Agents
from app.agent.loop import AgentLoop
from app.agent.retry import RetryPolicy
from app.agent.step import PostStepListener
from app.agent.turn import ModelConfig
from app.llm.scripted import ScriptedAdapter
from app.llm.service import LlmService
from app.llm.types import Adapter, StreamMiddleware
from app.middleware import CHECKPOINT, Named
from app.session import events as ev
from app.session.drain import DrainLimits
from app.session.ownership import Owner
from app.session.persistence import SessionPersistence
from app.session.record import SessionEvent
from app.session.session import LogLimits, Session
from app.session.store import SessionStore
from app.tools.schema import as_tool
from app.tools.service import ToolService
from app.tools.tool_set import ToolSet
from app.tools.types import Guard, ToolMiddleware, ToolPolicy
from persistence.memory import MemoryPersistence
from policy.checkpoint import CheckpointPolicy, SemanticCheckpointPolicy
from policy.retry import BackoffRetryPolicy

OWNER = Owner("test", lease_s=30.0)


@dataclass
class Clock:
    """Milliseconds since the epoch; stands still unless a test moves it."""

    now_ms: int = 1_750_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class House:
    """What a test may change before `agents()`; afterwards the built parts are attributes too.

    The three lists are given without `checkpoint` where they are `above` and `below` it.
    """

    steps: Sequence[Any] = ()
    tools: Sequence[Any] = ()
    persistence: SessionPersistence = field(default_factory=MemoryPersistence)
    owner: Owner = OWNER
    clock: Callable[[], int] = field(default_factory=Clock)
    policy: Callable[[SessionStore], CheckpointPolicy] = SemanticCheckpointPolicy
    stream_above: Sequence[Named[StreamMiddleware]] = ()
    stream_below: Sequence[Named[StreamMiddleware]] = ()
    tool_above: Sequence[Named[ToolMiddleware]] = ()
    tool_below: Sequence[Named[ToolMiddleware]] = ()
    listeners_above: Sequence[Named[PostStepListener]] = ()
    listeners_below: Sequence[Named[PostStepListener]] = ()
    policies: Sequence[Named[ToolPolicy]] = ()
    guards: Sequence[Named[Guard]] = ()
    retry: RetryPolicy = field(default_factory=lambda: BackoffRetryPolicy(base_ms=1))
    config: ModelConfig = field(default_factory=lambda: ModelConfig("script", "test"))
    adapters: Sequence[Adapter] | None = None
    drain_limits: DrainLimits = field(default_factory=lambda: DrainLimits(write_behind_ms=None))
    log_limits: LogLimits = field(default_factory=LogLimits)
    extensions: Sequence[ev.ExtensionType] = ()
    max_parallel_tools: int = 10
    lease_margin_s: float = 5.0

    def __post_init__(self) -> None:
        self.adapter = ScriptedAdapter(steps=list(self.steps))
        self.tool_set = ToolSet([as_tool(tool) for tool in self.tools])
        self.sessions = SessionStore(
            self.persistence,
            self.owner,
            clock=self.clock,
            extensions=self.extensions,
            log_limits=self.log_limits,
            drain_limits=self.drain_limits,
            lease_margin_s=self.lease_margin_s,
            reconcile=self.tool_set,
        )
        checkpoint = self.policy(self.sessions)
        self.llm = LlmService(
            [self.adapter] if self.adapters is None else self.adapters,
            [*self.stream_above, Named(CHECKPOINT, checkpoint.before_request), *self.stream_below],
            self.sessions,
        )
        self.tool_service = ToolService(
            self.tool_set,
            self.policies,
            self.guards,
            [*self.tool_above, Named(CHECKPOINT, checkpoint.before_tool), *self.tool_below],
        )
        self.loop = AgentLoop(
            self.llm,
            self.tool_service,
            [*self.listeners_above, Named(CHECKPOINT, checkpoint.after_step), *self.listeners_below],
            self.retry,
            max_parallel_tools=self.max_parallel_tools,
        )
        self.agents = Agents(self.sessions, self.loop, self.config, checkpoint.after_append)

    @asynccontextmanager
    async def agent(self, session_id: str = "s") -> AsyncIterator[Agent]:
        """An agent with a new session over the opened store; all of it is closed at the end."""
        async with self.opened():
            yield await self.agents.create(session_id)

    @asynccontextmanager
    async def resumed(self, session_id: str = "s", *, force: bool = False) -> AsyncIterator[Agent]:
        """The same, with a stored session."""
        async with self.opened():
            yield await self.agents.resume(session_id, force=force)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """The store open; at the end every agent is closed, and then the store."""
        await self.persistence.open()
        try:
            yield
            await self.agents.close()
        finally:
            await self.persistence.close()


def types(session: Session) -> list[str]:
    """The event types of a live log in order, the reason of `turn/end` in braces, runs of chunks as one `chunk*`."""
    return shorten(session.events)


def shorten(events: Sequence[SessionEvent]) -> list[str]:
    """As `types`, for any events."""
    names: list[str] = []
    for event in events:
        if event.type == "assistant/chunk":
            if names[-1:] != ["chunk*"]:
                names.append("chunk*")
        elif event.type == "turn/end":
            data = event.data
            detail = data.get("error", {}).get("code", "")
            names.append(f"turn/end{{{data['reason']}{' ' + detail if detail else ''}}}")
        else:
            names.append(event.type)
    return names

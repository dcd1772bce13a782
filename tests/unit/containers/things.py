"""What dotted paths lead to in these tests. `trace` is where they write what they were called for."""

from __future__ import annotations

from typing import Any, ClassVar

from app.agent.step import Step
from app.llm.scripted import ScriptedAdapter, call, say
from app.llm.types import ChunkStream, LlmRequest, OpenStream
from app.session.events import ExtensionType
from app.session.session import Session
from app.session.store import SessionStore
from app.tools.schema import tool
from app.tools.types import Allow, Deny, Execute, ToolExecution, ToolResult
from persistence.memory import MemoryPersistence
from policy.checkpoint import SemanticCheckpointPolicy

HERE = "tests.unit.containers.things"

trace: list[str] = []
"""Emptied by the tests that look at it."""


class Audit:
    """A listener that appends."""

    appends: ClassVar[tuple[ExtensionType, ...]] = (ExtensionType("audit/seen", ignorable=True),)

    async def __call__(self, step: Step) -> None:
        step.append(self.appends[0], {})


class Undeclared:
    """A listener that appends a type of somebody else's."""

    async def __call__(self, step: Step) -> None:
        step.append(Audit.appends[0], {})


async def quiet(step: Step) -> None:
    """A listener that appends nothing."""


async def step_a(step: Step) -> None:
    trace.append(f"step_a {_is_durable(step.session)}")


async def step_b(step: Step) -> None:
    trace.append(f"step_b {_is_durable(step.session)}")


class Failing:
    def __init__(self) -> None:
        raise RuntimeError("out of order")


async def stream_a(request: LlmRequest, call_next: OpenStream) -> ChunkStream:
    trace.append(f"stream_a {_is_durable(request.session)}")
    return await call_next(request)


async def stream_b(request: LlmRequest, call_next: OpenStream) -> ChunkStream:
    trace.append(f"stream_b {_is_durable(request.session)}")
    return await call_next(request)


async def tool_a(execution: ToolExecution, call_next: Execute) -> ToolResult:
    trace.append(f"tool_a {_is_durable(execution.session)}")
    return await call_next(execution)


async def tool_b(execution: ToolExecution, call_next: Execute) -> ToolResult:
    trace.append(f"tool_b {_is_durable(execution.session)}")
    return await call_next(execution)


def _is_durable(session: Session | None) -> bool:
    return session is not None and session.durable == len(session)


async def allow(execution: ToolExecution) -> Allow | Deny:
    trace.append("allow")
    return Allow()


def guard(execution: ToolExecution) -> str | None:
    trace.append("guard")
    return None


def add(a: int, b: int) -> int:
    """Add two numbers."""
    trace.append("add")
    return a + b


shouted = tool(lambda: "HELLO", name="shout", description="Shout.")


class Model(ScriptedAdapter):
    """Calls `add` once, and then says what it knows."""

    def __init__(self) -> None:
        super().__init__([call("add", {"a": 1, "b": 2}, id="c1"), say("3")], name="of its own")


def make_model() -> Model:
    return Model()


class Backend(MemoryPersistence):
    """A backend of somebody's own, which believes in itself."""

    kind = "mine"
    durable = True

    def __init__(self, dsn: str = "", pool: int = 1) -> None:
        super().__init__()
        if dsn.startswith("bad"):
            raise ValueError(f"cannot use {dsn}")
        self.options = (dsn, pool)


class Mine(SemanticCheckpointPolicy):
    """A checkpoint policy of somebody's own, at two places only."""

    places = frozenset(["request", "tool"])

    async def after_step(self, step: Step) -> None:
        return None


def make_policy(sessions: SessionStore) -> Mine:
    return Mine(sessions)


class Astray(SemanticCheckpointPolicy):
    places: ClassVar[Any] = frozenset(["request", "moon"])


number = 3

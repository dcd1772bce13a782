"""What the tests of the tool service share: a service, a call, a session with an open call, a list to note order in."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from app.cancel import CancelSignal
from app.middleware import Named
from app.session import events as ev
from app.session.batch import Header
from app.session.ownership import Epoch, Owner
from app.session.session import Session
from app.tools.schema import as_tool
from app.tools.service import ToolService
from app.tools.tool_set import ToolSet
from app.tools.types import Execute, ToolExecution, ToolResult

ABD = ToolResult.error("ABORTED_BEFORE_DISPATCH", "tool call aborted before dispatch")


def service(*tools: object, **parts: Any) -> ToolService:
    """A service of functions or tools; `policies`, `guards` and `middleware` are named by their functions."""
    named: dict[str, Any] = {
        key: [entry if isinstance(entry, Named) else Named(entry.__name__, entry) for entry in parts.pop(key, ())]
        for key in ("policies", "guards", "middleware")
    }
    return ToolService(ToolSet([as_tool(tool) for tool in tools]), **named, **parts)


def call(name: str, arguments: str = "{}", **parts: Any) -> ToolExecution:
    return ToolExecution(name, arguments, parts.pop("call_id", "c1"), **parts)


def failure(result: ToolResult | None) -> tuple[str, str]:
    """Code and message of what has to be an error."""
    assert result is not None
    assert result.failure is not None, result
    return result.failure.code, result.failure.message


def checkpoint(flush: Callable[[], Awaitable[None]]) -> Named[Any]:
    """A checkpoint as the semantic policy has it: flush, look at the signal, only then go on; not for nested calls."""

    async def before_tool(execution: ToolExecution, call_next: Execute) -> ToolResult:
        if execution.parent is None:
            await flush()
            if execution.signal.is_cancelled:
                return ABD
        return await call_next(execution)

    return Named("checkpoint", before_tool)


def session_with_open_calls(calls: Sequence[tuple[str, str, str]]) -> Session:
    """A session in whose open step these calls (id, tool, arguments) were asked for and recorded as started."""
    session = Session(Header.make("s1", 0), Epoch.first(Owner("tests")), clock=lambda: 0)
    model = {"adapter": "a", "model": "m"}
    blocks = [{"type": "tool_call", "id": i, "name": name, "arguments": text} for i, name, text in calls]
    session.append(
        ev.InboxAccepted({"id": "m1", "content": "go"}, "next_turn"),
        ev.TurnStart(1, ["m1"]),
        ev.UserMessage(1, {"id": "m1", "content": "go"}, "next_turn"),
        ev.StepStart(1, 1),
        ev.RequestHeader(1, 1, "initial", model, []),
        ev.AssistantMessage(1, 1, blocks, [], model, "tool_calls"),
        *(ev.ToolCall(1, 1, i, name, text, "side_effect") for i, name, text in calls),
    )
    return session


def in_session(session: Session, name: str, arguments: str = "{}", **parts: Any) -> ToolExecution:
    """A top-level call of that session's open step, as the loop would make it."""

    async def record(data: ev.EventData) -> None:
        session.append(data)

    return call(name, arguments, session=session, turn=1, step=1, record=record, **parts)


def cancelled(cause: str = "user") -> CancelSignal:
    signal = CancelSignal()
    signal.cancel(cause)
    return signal

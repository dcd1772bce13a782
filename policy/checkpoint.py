"""When a session is made durable: before the model is asked, before a tool may act, after each step; or less, or more.

A policy has four functions and the places it occupies. It keeps no state, appends nothing, and knows no store but the
live sessions.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol, TypeAlias

from app.agent.step import Step
from app.llm.types import ChunkStream, LlmRequest, OpenStream
from app.session import events as ev
from app.session.batch import Reason
from app.session.errors import AbortedBeforeDispatch
from app.session.session import Session
from app.session.store import SessionStore
from app.tools.types import ABORTED_BEFORE_DISPATCH, Execute, ToolExecution, ToolResult

Place: TypeAlias = Literal["request", "tool", "step", "append"]


class CheckpointPolicy(Protocol):
    """Stands as `checkpoint` in the lists of stream middleware, tool middleware and post-step listeners."""

    @property
    def places(self) -> frozenset[Place]:
        """Where it makes a checkpoint."""
        ...

    async def before_request(self, request: LlmRequest, call_next: OpenStream) -> ChunkStream: ...

    async def before_tool(self, execution: ToolExecution, call_next: Execute) -> ToolResult: ...

    async def after_step(self, step: Step) -> None: ...

    async def after_append(self, session: Session) -> None:
        """Awaited by the loop after each group that it recorded."""
        ...


class SemanticCheckpointPolicy:
    """Nothing leaves the process, to a model or into the world, that the log does not durably know of."""

    places: ClassVar[frozenset[Place]] = frozenset(["request", "tool", "step"])

    def __init__(self, sessions: SessionStore) -> None:
        self._sessions = sessions

    async def before_request(self, request: LlmRequest, call_next: OpenStream) -> ChunkStream:
        """Flush, then look again whether the request is still wanted and the session still ours; only then open.

        Raises what the flush raised, as it is; AbortedBeforeDispatch if the request was cancelled meanwhile.
        """
        session = request.session
        if session is None:
            return await call_next(request)
        await self._sessions.flush(session, "request")
        # fp: request.flushed
        if not _is_cancelled(request):
            await self._sessions.check_ownership(session)
        if _is_cancelled(request):
            raise AbortedBeforeDispatch(session.id)
        # fp: request.let_through
        return await call_next(request)

    async def before_tool(self, execution: ToolExecution, call_next: Execute) -> ToolResult:
        """Flush before a top-level body, then look again at the signal and the ownership. A failure is a result.

        A nested call is covered by its outer one.
        """
        session = execution.session
        if session is None or execution.parent is not None:
            return await call_next(execution)
        try:
            await self._sessions.flush(session, "tool")
            # fp: tool.flushed
            if not execution.signal.is_cancelled:
                await self._sessions.check_ownership(session)
        except Exception as error:  # whatever the store raised: the body is not entered, and the model is told
            if execution.signal.is_cancelled and not session.is_lost:
                return ABORTED_BEFORE_DISPATCH
            return ToolResult.error("CHECKPOINT_FAILED", str(error))
        if execution.signal.is_cancelled:
            return ABORTED_BEFORE_DISPATCH
        return await call_next(execution)

    async def after_step(self, step: Step) -> None:
        """Flush the step: its message, its results, and what the listeners above have appended."""
        await self._sessions.flush(step.session, "post-step")
        # fp: step.flushed

    async def after_append(self, session: Session) -> None:
        return None


class TurnEndCheckpointPolicy:
    """No checkpoint inside the turn: the loop's final flush and the write-behind window are all there is."""

    places: ClassVar[frozenset[Place]] = frozenset()

    async def before_request(self, request: LlmRequest, call_next: OpenStream) -> ChunkStream:
        return await call_next(request)

    async def before_tool(self, execution: ToolExecution, call_next: Execute) -> ToolResult:
        return await call_next(execution)

    async def after_step(self, step: Step) -> None:
        return None

    async def after_append(self, session: Session) -> None:
        return None


class EveryEventCheckpointPolicy(SemanticCheckpointPolicy):
    """The semantic checkpoints, and a flush after each group that the loop appends, before it goes on."""

    places: ClassVar[frozenset[Place]] = SemanticCheckpointPolicy.places | {"append"}

    async def after_append(self, session: Session) -> None:
        last = session.events_from(len(session) - 1)[0].type
        if last != ev.TurnEnd.type:  # that one is the loop's own final flush
            await self._sessions.flush(session, _REASONS.get(last, "post-step"))


def _is_cancelled(request: LlmRequest) -> bool:
    return request.signal is not None and request.signal.is_cancelled


_REASONS: dict[str, Reason] = {
    ev.TurnStart.type: "request",
    ev.UserMessage.type: "request",
    ev.StepStart.type: "request",
    ev.RequestHeader.type: "request",
    ev.AssistantChunk.type: "request",
    ev.ToolCall.type: "tool",
}

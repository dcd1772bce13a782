"""One turn: open the step; stream; record; run the calls; record their results; tell the listeners; close."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from app.agent.requests import header_event, make_request
from app.agent.retry import Fail, Retry, RetryPolicy
from app.agent.step import CheckpointFailed, ListenerFailed, PostStepListener, Step, run_listeners
from app.agent.tool_calls import ToolCalls
from app.agent.turn import Turn, TurnFailed
from app.llm import chunks
from app.llm.assembler import Answer, Assembler
from app.llm.service import LlmService, OpenedStream
from app.llm.types import LlmError
from app.messages import Failure, Message, ModelRef
from app.middleware import MiddlewareFailed, Named
from app.session import events as ev
from app.session.errors import AbortedBeforeDispatch, ConfigurationError, LimitExceeded, PersistenceError
from app.session.log_state import CALLS, DONE, REQUEST
from app.session.recovery import closing_results
from app.tools.service import ToolService

logger = logging.getLogger(__name__)


class AgentLoop:
    """Runs turns. Services and lists come built; the loop decides what is recorded, and in which order."""

    def __init__(
        self,
        llm: LlmService,
        tools: ToolService,
        post_step: Sequence[Named[PostStepListener]],
        retry: RetryPolicy,
        *,
        max_parallel_tools: int = 10,
    ) -> None:
        """Raises ConfigurationError for a `max_parallel_tools` that is no integer of 1 or more."""
        if type(max_parallel_tools) is not int or max_parallel_tools < 1:
            raise ConfigurationError(f"max_parallel_tools is an integer of 1 or more, not {max_parallel_tools!r}")
        self.llm = llm
        self.tools = tools
        self.post_step = tuple(post_step)
        self._retry = retry
        self._max_parallel_tools = max_parallel_tools

    async def run_turn(self, turn: Turn) -> None:
        """Take the oldest waking message, and return when its turn has ended. A turn ends exactly once, whatever fails.

        Raises LimitExceeded if the log is too long for another turn; then nothing was recorded.
        """
        self._open(turn)
        failure: TurnFailed | None = None
        try:
            await turn.recorded()
            while await self._step(turn):
                pass
        except Exception as error:  # every way a turn can fail has its code; what has none is a bug and says so
            failure = _as_failure(error, turn)
        await self._close(turn, failure)

    def _open(self, turn: Turn) -> None:
        state = turn.session.state
        message = state.pending_of("next_turn", "next_step")[0]
        taken = [*state.pending_of("context"), message]
        number = turn.number + 1
        turn.session.append(
            ev.TurnStart(number, [entry.id for entry in taken]),
            *(ev.UserMessage(number, entry.value, entry.placement) for entry in taken),
        )

    async def _step(self, turn: Turn) -> bool:
        """One step; whether another one is owed."""
        await turn.take_in()
        if turn.must_stop:
            return False
        messages = turn.session.messages
        await turn.record(ev.StepStart(turn.number, turn.step + 1))
        try:
            answer = await self._ask(turn, messages)
        except LlmError as error:
            return await self._retry_after(turn, error.failure)
        if answer is None:  # cancelled, and nothing was visible yet
            return False
        turn.earlier_failures.clear()
        await turn.record(answer)
        if answer.interrupted:
            return False
        if answer.calls:
            await ToolCalls(self.tools, turn, self._max_parallel_tools).run()
        was_steered = await turn.take_in()
        await run_listeners(self.post_step, Step(turn.session, turn.number, turn.step, turn.signal, turn.accept))
        if turn.session.is_lost:  # the step is left open, so that the end can say in which one
            return False
        await turn.record(ev.StepEnd(turn.number, turn.step))
        is_owed = bool(answer.calls) or was_steered or bool(turn.session.state.pending_of("next_step"))
        return is_owed and not turn.must_stop

    # ---------------------------------------------------------------------------------------- the request

    async def _ask(self, turn: Turn, messages: Sequence[Message]) -> ev.AssistantMessage | None:
        """Make the request and read the answer; None if the turn has to stop before any text was visible."""
        if turn.must_stop:
            return None
        header = header_event(turn, self.tools.tool_set.specs)
        if header is not None:
            await turn.record(header)
        if turn.must_stop:
            return None
        in_force = turn.session.state.header or ""
        request = make_request(in_force, messages, turn.session.id, turn.signal)
        assembler = Assembler()
        stream = self.llm.stream(request)
        try:
            async with AsyncExitStack() as stack:
                await self._enter(stack, stream)
                await self._read(turn, stream, assembler)
        except AbortedBeforeDispatch:
            return None
        except (LlmError, MiddlewareFailed) as error:
            if not turn.must_stop:
                raise
            logger.info("after the turn was told to stop, its request failed: %s", error)
        if turn.session.is_lost:
            return None
        if turn.signal.is_cancelled:
            return _interrupted(turn, assembler, stream.model)
        verdict = assembler.verdict(turn.session.state.call_ids, turn.number, turn.step)
        if isinstance(verdict, Failure):
            raise LlmError(verdict)
        turn.hit_max_tokens = turn.hit_max_tokens or verdict.finish == "max_tokens"
        return _message(turn, verdict, stream.model)

    async def _enter(self, stack: AsyncExitStack, stream: OpenedStream) -> None:
        try:
            await stack.enter_async_context(stream)
        except (LlmError, MiddlewareFailed, AbortedBeforeDispatch):
            raise
        except Exception as error:  # the service tells all others apart: what is left came out of the checkpoint
            raise CheckpointFailed(str(error)) from error

    async def _read(self, turn: Turn, stream: OpenedStream, assembler: Assembler) -> None:
        """Record each chunk as it comes. The signal ends the wait for the next one, and only that."""

        is_recording = False

        async def read() -> None:
            nonlocal is_recording
            async for chunk in stream:
                is_recording = True
                await turn.record(ev.AssistantChunk(turn.number, turn.step, chunks.to_json(chunk)))
                is_recording = False
                assembler.add(chunk)
                if turn.must_stop:
                    return

        def stop() -> None:
            if not is_recording:  # a chunk that is in the log belongs to the answer, also while it is being flushed
                reading.cancel()

        reading = asyncio.get_running_loop().create_task(read())
        forget = turn.signal.call_when_cancelled(stop)
        try:
            await asyncio.wait((reading,))
        finally:
            forget()
            if not reading.done():  # this task itself is being cancelled
                reading.cancel()
                await asyncio.wait((reading,))
        if not reading.cancelled():
            reading.result()
        elif not turn.must_stop:
            raise LlmError(Failure("the adapter cancelled its own stream"))

    async def _retry_after(self, turn: Turn, failure: Failure) -> bool:
        """Close the failed step and ask the retry policy; whether another step is owed. Raises TurnFailed."""
        step = turn.step
        await turn.record(ev.StepEnd(turn.number, step))
        if turn.must_stop:
            return False
        decision = await self._decide(turn, failure)
        if turn.must_stop:
            return False
        if isinstance(decision, Fail):
            raise TurnFailed(failure.code, failure.message, step)
        turn.earlier_failures.append(failure)
        retry, failed = len(turn.earlier_failures), chunks.failure_json(failure)
        await turn.record(
            ev.LlmRetry(turn.number, step, retry, decision.delay_ms, failed, max_retries=decision.max_retries)
        )
        await turn.signal.wait_for(decision.delay_ms / 1000)
        return not turn.must_stop

    async def _decide(self, turn: Turn, failure: Failure) -> Retry | Fail:
        try:
            return await self._retry(failure, tuple(turn.earlier_failures), turn.number, turn.step, turn.signal)
        except Exception:  # a retry policy is foreign code; the turn then ends with the failure it was asked about
            logger.exception("the retry policy failed on %s", failure.code)
            return Fail()

    # ---------------------------------------------------------------------------------------- the end

    async def _close(self, turn: Turn, failure: TurnFailed | None) -> None:
        session = turn.session
        if failure is None and session.lost is not None:
            failure = _as_failure(session.lost, turn)
        for result in closing_results(session.state, {}):
            failure = await _record_closing(turn, result, failure)
        if session.state.turn.state in (REQUEST, DONE):
            failure = await _record_closing(turn, ev.StepEnd(turn.number, turn.step), failure)
        turn.signal.retire()
        end = _ending(turn, failure)
        session.append(end)
        if end.error is not None:
            session.notify(ev.AgentError(end.error["code"], end.error["message"], end.turn, end.error.get("step")))


def _message(turn: Turn, answer: Answer, model: ModelRef) -> ev.AssistantMessage:
    return ev.AssistantMessage(
        turn.number,
        turn.step,
        content=chunks.content_json(answer.content),
        chunks=[list(bounds) for bounds in turn.session.state.turn.chunks],
        model={"adapter": model.adapter, "model": model.model},
        finish=answer.finish,
        usage=None if answer.usage is None else dict(answer.usage),
        replay_state=ev.ABSENT if answer.replay_state is None else answer.replay_state,
    )


def _interrupted(turn: Turn, assembler: Assembler, model: ModelRef) -> ev.AssistantMessage | None:
    """What was visible of a cancelled stream, without its calls; None if there was no text."""
    content = assembler.interrupted()
    if content is None:
        return None
    message = _message(turn, Answer(content, "aborted", assembler.usage), model)
    return replace(message, interrupted=True)


def _ending(turn: Turn, failure: TurnFailed | None) -> ev.TurnEnd:
    """How the turn ends: a lost session before everything, then a cancel, then a failure."""
    lost = turn.session.lost
    if lost is not None:
        failure = TurnFailed(lost.code, str(lost), None if failure is None else failure.step)
    elif turn.signal.is_cancelled:
        return ev.TurnEnd(turn.number, "aborted", cause=turn.signal.cause)
    if failure is None:
        return ev.TurnEnd(turn.number, "max_tokens" if turn.hit_max_tokens else "completed")
    error: ev.JsonObject = {"message": str(failure), "code": failure.code}
    return ev.TurnEnd(turn.number, "error", error=error if failure.step is None else {**error, "step": failure.step})


async def _record_closing(turn: Turn, event: ev.EventData, failure: TurnFailed | None) -> TurnFailed | None:
    try:
        await turn.record(event)
    except CheckpointFailed as error:  # it is in the log; the first failure is the one that is told
        return failure or _as_failure(error, turn)
    return failure


def _as_failure(error: Exception, turn: Turn) -> TurnFailed:
    if isinstance(error, TurnFailed):
        return error
    step = turn.step if turn.session.state.turn.state in (REQUEST, CALLS, DONE) else None
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return TurnFailed(code, str(error), step)
    logger.error("turn %d of session %s failed inside the loop", turn.number, turn.session.id, exc_info=error)
    return TurnFailed("INTERNAL", f"{type(error).__name__}: {error}", step)


_CODES: dict[type[Exception], str] = {
    CheckpointFailed: "CHECKPOINT_FAILED",
    PersistenceError: "CHECKPOINT_FAILED",
    MiddlewareFailed: "MIDDLEWARE_FAILED",
    ListenerFailed: "LISTENER_FAILED",
    LimitExceeded: "LIMIT_EXCEEDED",
}

"""One request and its answer: opened after the checkpoint, read chunk by chunk into the log, made into a message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from app.agent.requests import header_event, make_request
from app.agent.step import CheckpointFailed
from app.agent.turn import Turn
from app.llm import chunks
from app.llm.assembler import Answer, Assembler
from app.llm.service import LlmService, OpenedStream
from app.llm.types import LlmError
from app.messages import Failure, Message, ModelRef, ToolSpec
from app.middleware import MiddlewareFailed
from app.session import events as ev
from app.session.errors import AbortedBeforeDispatch

logger = logging.getLogger(__name__)


async def ask(
    llm: LlmService, tools: Sequence[ToolSpec], turn: Turn, messages: Sequence[Message]
) -> ev.AssistantMessage | None:
    """Make the request and read the answer; None if the turn has to stop before any text was visible.

    Raises LlmError for a failed request, and as `Turn.record`; CheckpointFailed, MiddlewareFailed.
    """
    if turn.must_stop:
        return None
    header = header_event(turn, tools)
    if header is not None:
        await turn.record(header)
        # fp: request.recorded
    if turn.must_stop:
        return None
    in_force = turn.session.state.header or ""
    request = make_request(in_force, messages, turn.session.id, turn.signal)
    assembler = Assembler()
    stream = llm.stream(request)
    try:
        async with AsyncExitStack() as stack:
            await _enter(stack, stream)
            await _read(turn, stream, assembler)
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


async def _enter(stack: AsyncExitStack, stream: OpenedStream) -> None:
    try:
        await stack.enter_async_context(stream)
    except (LlmError, MiddlewareFailed, AbortedBeforeDispatch):
        raise
    except Exception as error:  # the service tells all others apart: what is left came out of the checkpoint
        raise CheckpointFailed(str(error)) from error


async def _read(turn: Turn, stream: OpenedStream, assembler: Assembler) -> None:
    """Record each chunk as it comes. The signal ends the wait for the next one, and only that."""

    is_recording = False

    async def read() -> None:
        nonlocal is_recording
        async for chunk in stream:
            is_recording = True
            await turn.record(ev.AssistantChunk(turn.number, turn.step, chunks.to_json(chunk)))
            # fp: chunk.recorded
            is_recording = False
            assembler.add(chunk)
            if turn.must_stop:
                return

    def stop() -> None:
        if not is_recording:  # a chunk that is in the log belongs to the answer, also while it is being flushed
            reading.cancel()

    reading = asyncio.get_running_loop().create_task(read())
    reading.add_done_callback(_look_at)
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


def _look_at(reading: asyncio.Task[None]) -> None:
    """asyncio reports an error that nobody has looked at; and who waited for this one may have been cancelled."""
    if not reading.cancelled():
        reading.exception()


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

"""What a model request is, what comes back, and how an adapter fails: the words of the model service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from app.cancel import CancelSignal
from app.messages import Failure, Message, ModelRef, StreamChunk, ToolSpec
from app.middleware import Handler, Middleware
from app.session.session import Session

ChunkStream: TypeAlias = AsyncGenerator[StreamChunk, None]


@dataclass(frozen=True, slots=True)
class LlmRequest:
    """One request to a model. Change it with `dataclasses.replace`; every part is immutable.

    `session_id` names the session it belongs to, if any; `session` is that session if it was live when
    `LlmService.stream` was called, and is set there only. `temperature` has no unit; `max_tokens` counts tokens.
    """

    model: ModelRef
    messages: Sequence[Message]
    system: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    session_id: str | None = None
    signal: CancelSignal | None = None
    session: Session | None = field(default=None, repr=False, compare=False)


OpenStream: TypeAlias = Handler[LlmRequest, ChunkStream]
StreamMiddleware: TypeAlias = Middleware[LlmRequest, ChunkStream]


class LlmError(Exception):
    """A failed model request. The only exception whose code is believed; an adapter raises nothing else on purpose."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Adapter(Protocol):
    """Speaks one vendor's wire protocol. `name` is how settings and `--model NAME:MODEL` call it."""

    @property
    def name(self) -> str: ...

    def stream(self, request: LlmRequest) -> ChunkStream:
        """The vendor's stream, as an async generator: nothing is sent before its first chunk is asked for.

        Usually an `async def` with `yield` inside `async with client.stream(...)`. Closing it closes the connection; a
        cancelled turn cancels the wait for the next chunk, the first one included. Raises LlmError when the vendor
        refuses or the stream breaks; anything else counts as a failure with code UNKNOWN.
        """
        ...

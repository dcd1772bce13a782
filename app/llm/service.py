"""Asks a model: opens a request's stream through the ordered middleware, and tells whose fault a failure is."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self, TypeVar

from app.causes import describe
from app.llm.checked import AdapterStream, CheckedStream, MiddlewareStream, as_llm_error
from app.llm.types import Adapter, ChunkStream, LlmError, LlmRequest, OpenStream, StreamMiddleware
from app.messages import AssistantMessage, Failure, Message, ModelRef
from app.middleware import MiddlewareFailed, Named, compose
from app.session.errors import ConfigurationError
from app.session.session import Session

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=CheckedStream)


class LiveSessions(Protocol):
    """The sessions live in this process."""

    def get(self, session_id: str) -> Session | None: ...


class LlmService:
    """The one way to a model. `adapters` are their names, `middleware` the ordered list, first outermost."""

    def __init__(
        self, adapters: Sequence[Adapter], middleware: Sequence[Named[StreamMiddleware]], sessions: LiveSessions
    ) -> None:
        """Raises ConfigurationError if two adapters share a name."""
        names = Counter(adapter.name for adapter in adapters)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ConfigurationError(f"adapters need names of their own; there twice: {', '.join(map(repr, twice))}")
        self.adapters = tuple(names)
        self.middleware = tuple(middleware)
        self._adapters = {adapter.name: adapter for adapter in adapters}
        self._sessions = sessions

    def adapter(self, name: str) -> Adapter | None:
        """The adapter of this name."""
        return self._adapters.get(name)

    def stream(self, request: LlmRequest) -> OpenedStream:
        """The answer to `request`, opened by entering it; the call itself only looks up whether its session is live.

        `async with llm.stream(request) as stream: async for chunk in stream: ...`. Entering and reading raise LlmError
        for a failure of this request's adapter; MiddlewareFailed for what a middleware raised itself, a failed request
        of its own included; what the entry `checkpoint` raised as it is; SessionNotLive, the error of a lost session. A
        stream may end without a `finish`: whether it is an answer is the assembler's verdict.
        """
        session = None if request.session_id is None else self._sessions.get(request.session_id)
        return OpenedStream(replace(request, session=session), self._adapters, self.middleware)


class OpenedStream:
    """One request's stream: an async context manager, entered once, and closed on leaving.

    `model` is who answers: the request's model, or the one that middleware sent the request to.
    """

    def __init__(
        self,
        request: LlmRequest,
        adapters: Mapping[str, Adapter],
        middleware: Sequence[Named[StreamMiddleware]],
    ) -> None:
        self._request = request
        self._adapters = adapters
        self._middleware = middleware
        self._chunks: CheckedStream | None = None
        self._is_entered = False
        self._opened: list[AdapterStream] = []
        self._blamed: list[Exception] = []
        self._to_close = AsyncExitStack()

    @property
    def model(self) -> ModelRef:
        if isinstance(self._chunks, AdapterStream):
            return self._chunks.model
        # A middleware reads one or more streams inside its own: the last that came to its end, or else the last opened.
        candidates = [stream for stream in self._opened if stream.is_finished] or self._opened
        return candidates[-1].model if candidates else self._request.model

    def __aiter__(self) -> ChunkStream:
        """The chunks, in order, `finish` the last. Its `__anext__` is a coroutine, fit for a task of its own."""
        if self._chunks is None:
            raise RuntimeError("the stream is not open: read it inside `async with`")
        return self._chunks

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise RuntimeError("a stream is entered once; ask the service for another")
        self._is_entered = True
        watched = [Named(entry.name, self._watched(entry)) for entry in self._middleware]
        handler = compose(watched, self._open, self._blamed)
        try:
            stream = await handler(self._request)
        except BaseException as error:  # also when cancelled: what was opened by then is closed
            await self._close(error)
            raise
        assert isinstance(stream, CheckedStream)
        self._chunks = stream
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close(error)

    async def _close(self, error: BaseException | None) -> None:
        """Close every stream of this request, the last opened first, also those that a failing middleware let drop."""
        try:
            await self._to_close.aclose()
        except MiddlewareFailed as failed:
            if error is None:
                raise
            logger.warning("%s, while closing a stream after: %s", failed, describe(error))

    async def _open(self, request: LlmRequest) -> ChunkStream:
        """The innermost handler: get the adapter's stream, which connects once it is read."""
        if request.session is not None:
            request.session.check_usable()  # whatever the policy is: it may have been lost while middleware was awaited
        adapter = self._adapters.get(request.model.adapter)
        if adapter is None:
            known = f"there are {', '.join(map(repr, self._adapters))}" if self._adapters else "there is none"
            raise LlmError(Failure(f"no adapter is named {request.model.adapter!r}; {known}", "NO_ADAPTER"))
        try:
            source = adapter.stream(with_own_replay_state(request))
            _check_is_stream(source)
        except Exception as error:  # an adapter is foreign code and may raise anything
            blamed = as_llm_error(error)
            if blamed is error:
                raise
            raise blamed from error
        stream = self._kept(AdapterStream(source, self._blamed, request.model))
        self._opened.append(stream)
        return stream

    def _watched(self, entry: Named[StreamMiddleware]) -> StreamMiddleware:
        """`entry`, with what it hands on and gives back looked at; what it raises while opening is for `compose`."""

        async def call(request: LlmRequest, call_next: OpenStream) -> ChunkStream:
            from_inside: list[ChunkStream] = []

            async def open_inside(changed: LlmRequest) -> ChunkStream:
                if changed.session is not self._request.session:  # or a request built anew would pass the checkpoint by
                    changed = replace(changed, session=self._request.session)
                stream = await call_next(changed)
                from_inside.append(stream)
                return stream

            stream = await entry.call(request, open_inside)
            if any(stream is inner for inner in from_inside):
                return stream
            _check_is_stream(stream)
            return self._kept(MiddlewareStream(stream, self._blamed, entry.name))

        return call

    def _kept(self, stream: S) -> S:
        self._to_close.push_async_callback(stream.aclose)
        return stream


def _check_is_stream(stream: object) -> None:
    if isinstance(stream, Coroutine):
        stream.close()
    if not isinstance(stream, AsyncGenerator):
        raise TypeError(f"it returned a {type(stream).__name__}, where an async generator of chunks was due")


def with_own_replay_state(request: LlmRequest) -> LlmRequest:
    """The request without the replay state that another adapter or model made: it means nothing to this one."""
    messages = tuple(_without_foreign_state(message, request.model) for message in request.messages)
    unchanged = all(new is old for new, old in zip(messages, request.messages, strict=True))
    return request if unchanged else replace(request, messages=messages)


def _without_foreign_state(message: Message, model: ModelRef) -> Message:
    if isinstance(message, AssistantMessage) and message.replay_state is not None and message.model != model:
        return replace(message, replay_state=None)
    return message

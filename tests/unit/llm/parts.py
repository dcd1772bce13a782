"""Adapters whose opening and closing a test can see, and what a service needs besides them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from app.llm.service import LlmService
from app.llm.types import ChunkStream, LlmRequest, StreamMiddleware
from app.messages import Finish, Message, ModelRef, StreamChunk, TextBlock, TextDelta, UserMessage
from app.middleware import Named
from app.session.batch import Header
from app.session.ownership import Epoch, Owner
from app.session.session import Session

HELLO: tuple[StreamChunk, ...] = (TextDelta(0, "hel"), TextDelta(0, "lo"), Finish("stop"))
ASK: tuple[Message, ...] = (UserMessage((TextBlock("hi"),)),)


class Source(AsyncGenerator[StreamChunk, None]):
    """A vendor's stream: gives these chunks, raising those that are errors, and notes each call of `aclose`."""

    def __init__(self, chunks: Sequence[Any], closed: Callable[[], None]) -> None:
        self._left = list(chunks)
        self._closed = closed
        self.reads = 0

    async def __anext__(self) -> StreamChunk:
        self.reads += 1
        if not self._left:
            raise StopAsyncIteration
        chunk = self._left.pop(0)
        if isinstance(chunk, BaseException):
            raise chunk
        if callable(chunk):
            chunk = await chunk()
        return chunk  # type: ignore[no-any-return]  # or whatever else a test wants read

    async def aclose(self) -> None:
        self._closed()

    async def asend(self, value: None, /) -> StreamChunk:
        raise NotImplementedError

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None, /) -> StreamChunk:
        raise NotImplementedError


class TracedAdapter:
    """Opens a Source for each request and writes `open NAME` and `close NAME` into `trace`."""

    def __init__(self, chunks: Sequence[Any] = HELLO, name: str = "a", trace: list[str] | None = None) -> None:
        self.name = name
        self.chunks = chunks
        self.trace: list[str] = [] if trace is None else trace
        self.requests: list[LlmRequest] = []
        self.sources: list[Source] = []
        self.refusal: BaseException | None = None

    def stream(self, request: LlmRequest) -> ChunkStream:
        self.trace.append(f"open {self.name}")
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        source = Source(self.chunks, lambda: self.trace.append(f"close {self.name}"))
        self.sources.append(source)
        return source


class Live:
    """The live sessions, by id."""

    def __init__(self, *sessions: Session) -> None:
        self.sessions = {session.id: session for session in sessions}
        self.looked_up: list[str] = []

    def get(self, session_id: str) -> Session | None:
        self.looked_up.append(session_id)
        return self.sessions.get(session_id)


def session(session_id: str = "s") -> Session:
    return Session(Header.make(session_id, 0), Epoch.first(Owner("tests")), lambda: 0)


def request(adapter: str = "a", **changes: Any) -> LlmRequest:
    return LlmRequest(**{"model": ModelRef(adapter, "m"), "messages": ASK, **changes})


def service(*adapters: Any, live: Live | None = None, **middleware: StreamMiddleware) -> LlmService:
    """A service with these adapters and this middleware, the first outermost."""
    return LlmService(adapters, [Named(name, call) for name, call in middleware.items()], live or Live())


async def read(llm: LlmService, request: LlmRequest) -> list[StreamChunk]:
    async with llm.stream(request) as stream:
        return [chunk async for chunk in stream]

"""A stream as far as it can be trusted: its chunks checked, its errors blamed on whoever made it, closed once."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any

from app.causes import describe
from app.llm.chunks import check, is_failure, with_known_code
from app.llm.types import ChunkStream, LlmError
from app.messages import Failure, Finish, ModelRef, StreamChunk
from app.middleware import CHECKPOINT, MiddlewareFailed

logger = logging.getLogger(__name__)


class CheckedStream(AsyncGenerator[StreamChunk, None]):
    """The stream of foreign code. Nothing is read after its `finish`; closing it closes the source, exactly once.

    A class and no generator function, because closing a generator that was never read runs none of its body, and so
    would leave the source open. `blamed` holds the errors of this request that have their final form already: one that
    comes by again, through a middleware that reads this stream inside its own, is left as it is.
    """

    def __init__(self, source: ChunkStream, blamed: list[Exception]) -> None:
        self._source = source
        self._blamed = blamed
        self._is_over = False
        self._is_closed = False

    async def __anext__(self) -> StreamChunk:
        if self._is_over:
            raise StopAsyncIteration
        try:
            chunk = await self._source.__anext__()
            check(chunk)
        except StopAsyncIteration:
            self._is_over = True
            raise
        except Exception as error:  # the source is foreign code and may raise anything
            self._is_over = True
            blamed = self._blame_once(error)
            if blamed is error:
                raise
            raise blamed from error
        if isinstance(chunk, Finish):
            self._is_over = True
            self._finished()
        return chunk

    def _blame_once(self, error: Exception) -> Exception:
        if any(error is earlier for earlier in self._blamed):
            return error
        blamed = self._blame(error)
        self._blamed.append(blamed)
        return blamed

    def _blame(self, error: Exception) -> Exception:
        """What `error`, raised by the source, is to whoever reads."""
        raise NotImplementedError

    def _finished(self) -> None:
        """The source gave its finish."""

    async def aclose(self) -> None:
        self._is_over = True
        if not self._is_closed:
            self._is_closed = True
            await self._source.aclose()

    async def asend(self, value: None, /) -> StreamChunk:
        return await self.__anext__()

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None, /) -> StreamChunk:
        """Close, and raise what was given: the source is not asked what it thinks of it."""
        await self.aclose()
        error = typ if isinstance(typ, BaseException) else val if isinstance(val, BaseException) else typ()
        raise error.with_traceback(tb)


class AdapterStream(CheckedStream):
    """What an adapter opened. All that it raises is an LlmError. `model` is who answers."""

    def __init__(self, source: ChunkStream, blamed: list[Exception], model: ModelRef) -> None:
        super().__init__(source, blamed)
        self.model = model
        self.is_finished = False

    def _finished(self) -> None:
        self.is_finished = True

    def _blame(self, error: Exception) -> LlmError:
        return as_llm_error(error)

    async def aclose(self) -> None:
        """Never raises for the adapter: the answer is whole or has failed by now, and a bad goodbye changes neither."""
        try:
            await super().aclose()
        except Exception as error:  # an adapter is foreign code; nobody is left who could act on it
            logger.warning("closing a stream of adapter %r failed: %s", self.model.adapter, describe(error))


class MiddlewareStream(CheckedStream):
    """A stream of a middleware's own making. What it raises itself is that middleware's failure, also at its end."""

    def __init__(self, source: ChunkStream, blamed: list[Exception], name: str) -> None:
        super().__init__(source, blamed)
        self.name = name

    def _blame(self, error: Exception) -> Exception:
        return error if self.name == CHECKPOINT else MiddlewareFailed(self.name, error)

    async def aclose(self) -> None:
        try:
            await super().aclose()
        except Exception as error:  # a middleware is foreign code and may raise anything
            blamed = self._blame_once(error)
            if blamed is error:
                raise
            raise blamed from error


def as_llm_error(error: Exception) -> LlmError:
    """What an adapter raised, as the failure it counts as. Only an LlmError has its code believed."""
    if isinstance(error, LlmError) and is_failure(error.failure):
        failure = with_known_code(error.failure)
        return error if failure is error.failure else LlmError(failure)
    return LlmError(Failure(describe(error)))

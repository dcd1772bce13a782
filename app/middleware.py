"""How calls are wrapped: an ordered list of named middleware round a handler, the first one outermost."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from app.causes import error_text

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")

Handler: TypeAlias = Callable[[T], Awaitable[R]]
Middleware: TypeAlias = Callable[[T, Callable[[T], Awaitable[R]]], Awaitable[R]]

CHECKPOINT = "checkpoint"
"""The name under which a checkpoint policy stands in every ordered list."""


@dataclass(frozen=True, slots=True)
class Named(Generic[C]):
    """One entry of an ordered list: what `explain` and errors call it, and what is called."""

    name: str
    call: C


class MiddlewareFailed(Exception):
    """A middleware raised something of its own; `__cause__` is what it raised."""

    code = "MIDDLEWARE_FAILED"

    def __init__(self, name: str, error: BaseException) -> None:
        super().__init__(f"middleware {name!r} failed: {error_text(error)}")
        self.name = name


def compose(
    middleware: Sequence[Named[Middleware[T, R]]],
    innermost: Handler[T, R],
    passing: list[Exception] | None = None,
) -> Handler[T, R]:
    """Nest `middleware` round `innermost`.

    What a middleware raises itself comes out as MiddlewareFailed; what its `call_next` raised passes through
    unchanged. The entry named `checkpoint` is not middleware of a user's: its errors pass unchanged too. A result that
    can fail later, in a middleware's hands, puts those errors into `passing`: they are no middleware's own either.
    """
    handler = innermost
    for entry in reversed(middleware):
        handler = _layer(entry, handler, passing)
    return handler


def _layer(entry: Named[Middleware[T, R]], inner: Handler[T, R], passing: list[Exception] | None) -> Handler[T, R]:
    if entry.name == CHECKPOINT:

        async def call_checkpoint(argument: T) -> R:
            return await entry.call(argument, inner)

        return call_checkpoint

    async def call(argument: T) -> R:
        from_inside: list[Exception] = [] if passing is None else passing

        async def call_next(changed: T) -> R:
            try:
                return await inner(changed)
            except Exception as error:  # noted and raised on: tells an inner failure from the middleware's own
                from_inside.append(error)
                raise

        try:
            return await entry.call(argument, call_next)
        except Exception as error:  # a middleware is foreign code and may raise anything
            if any(error is inner_error for inner_error in from_inside):
                raise
            raise MiddlewareFailed(entry.name, error) from error

    return call

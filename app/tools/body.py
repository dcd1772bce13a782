"""Runs the body of a tool: never on the event loop's thread if it is synchronous, and no longer than it may."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from app.tools.foreign import answer_of
from app.tools.types import Tool, ToolExecution

T = TypeVar("T")


async def run_in_thread(name: str, call: Callable[[], T]) -> T:
    """What `call` returns or raises, run in a thread of its own with a copy of the caller's context variables.

    A thread cannot be stopped: whoever cancels the waiting goes on at once, and what the thread returns is dropped.
    It is a daemon, since a stuck one must not keep the process from ending; so a pool would not do.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: T | None, error: BaseException | None) -> None:
        if not future.done():
            future.set_result((value, error))  # not `set_exception`: it takes no StopIteration

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(call)
        except BaseException as raised:  # also SystemExit: it belongs to the one who waits, not to this thread
            error = raised
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    threading.Thread(target=work, name=name, daemon=True).start()
    value, error = await future
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # no error, so it is what `call` returned


class TimedOut:
    """The body ran longer than it may."""


async def run_body(tool: Tool, validated: Any, execution: ToolExecution, timeout_s: float | None) -> Any:
    """What the body returned, Raised, or TimedOut.

    At its timeout an async body is cancelled and awaited to its end, whatever it makes of that; a thread is left alone.
    """
    limit = asyncio.timeout(timeout_s)

    async def run() -> Any:
        async with limit:
            return await tool.run(validated, execution)

    answer = await answer_of(run)
    return TimedOut() if limit.expired() else answer

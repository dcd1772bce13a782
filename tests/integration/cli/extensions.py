"""Parts of a user's own for the command's tests: they say on standard error where they are, and may stay there."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.agent.step import Step
from app.llm.types import ChunkStream, LlmRequest
from app.messages import Finish, TextDelta, ToolMessage
from app.session.batch import Batch, Header
from app.session.errors import PersistenceUnavailable
from app.session.ownership import Epoch
from app.session.recovery import Completed, RecordedCall
from app.tools.schema import tool
from app.tools.types import Execute, ToolExecution, ToolResult
from persistence.sqlite import SqlitePersistence


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def stay(text: str) -> None:
    """Say it, and wait to be killed."""
    say(text)
    await asyncio.Event().wait()


# ---------------------------------------------------------------------------------------- models


class Stuck:
    """A model that never answers."""

    async def stream(self, request: LlmRequest) -> ChunkStream:
        await stay("in the adapter")
        yield Finish("stop")


class Patient:
    """Says `one`, and `two` once it is let go on."""

    async def stream(self, request: LlmRequest) -> ChunkStream:
        yield TextDelta(0, "one")
        await asyncio.to_thread(sys.stdin.readline)
        yield TextDelta(1, "two")
        yield Finish("stop")


class Reader:
    """Says `asked`; answers with the results that it was given, a line each."""

    name = "reader"

    async def stream(self, request: LlmRequest) -> ChunkStream:
        say("asked")
        results = [f"{message.call_id}: {message.text}" for message in request.messages if type(message) is ToolMessage]
        yield TextDelta(0, "\n".join(["read", *results]))
        yield Finish("stop")


def make_reader() -> Reader:
    return Reader()


reader = Reader()
not_an_adapter = 42


# ---------------------------------------------------------------------------------------- tools


def mark(text: str) -> str:
    """Add a line to the file `marks`: the effect that a test counts."""
    with Path("marks").open("a") as file:
        file.write(f"{text}\n")
    return f"marked {text}"


def mark_and_stay(text: str) -> str:
    """The same, and never return."""
    mark(text)
    say("after the effect")
    threading.Event().wait()
    return "never"


async def refuse_to_end(text: str) -> str:
    """Leave the mark, say so, and never return, whoever cancels it."""
    mark(text)
    say("after the effect")
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def wait_a_moment() -> str:
    """End soon after the turn was asked to stop."""
    say("in the body")
    await asyncio.sleep(0.3)
    return "ended"


async def steer_and_stay(*, execution: ToolExecution) -> str:
    """Steer the turn, and never return."""
    execution.steer("steered")
    await asyncio.Event().wait()
    return "never"


async def nest_and_stay(*, execution: ToolExecution) -> str:
    """Run a nested call, and never return."""
    await execution.execute_nested("mark", {"text": "nested"})
    await asyncio.Event().wait()
    return "never"


def returns_nan() -> Any:
    """Return what is no JSON."""
    return float("nan")


async def _reconcile(call: RecordedCall) -> Completed:
    if "BEFOREHAND_TEST_STAY_IN_RECONCILE" in os.environ:
        await stay("reconciling")
    return Completed(f"found out about {call.call_id}")


reconciled = tool(mark_and_stay, name="reconciled", reconcile=_reconcile)
fast = tool(mark, name="fast", parallel_safe=True)
slow = tool(mark_and_stay, name="slow", parallel_safe=True)


# ---------------------------------------------------------------------------------------- places to stay


async def stay_before_the_body(execution: ToolExecution, call_next: Execute) -> ToolResult:
    """Tool middleware."""
    await stay("before the body")
    return await call_next(execution)


async def stay_after_the_step(step: Step) -> None:
    """A post-step listener."""
    await stay("after the step")


class Staying(SqlitePersistence):
    """Stays after the commit of the nth batch that ends with an event of the type `after`.

    Before that of the first one that ends with one of the type `before` it waits for a line on standard input.
    """

    def __init__(self, path: str, after: str = "", before: str = "", nth: str = "1") -> None:
        super().__init__(Path(path))
        self._after, self._before, self._left = after, before, int(nth)

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        last = batch.events[-1].type
        self._left -= last == self._after
        if last == self._before:
            self._before = ""
            say("before the commit")
            await asyncio.to_thread(sys.stdin.readline)
        await super().append(header, batch, epoch)
        if last == self._after and self._left == 0:
            await stay("after the commit")


class Leaving(SqlitePersistence):
    """Waits for a line on standard input before it lets go of a session."""

    def __init__(self, path: str) -> None:
        super().__init__(Path(path))

    async def release(self, session_id: str, epoch: Epoch) -> None:
        say("leaving")
        await asyncio.to_thread(sys.stdin.readline)
        await super().release(session_id, epoch)


class Refusing(SqlitePersistence):
    """Takes so many batches, then none any more."""

    def __init__(self, path: str, takes: str) -> None:
        super().__init__(Path(path))
        self._takes = int(takes)

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        if self._takes == 0:
            raise PersistenceUnavailable(session_id=header.id, reason="the disk is full")
        self._takes -= 1
        await super().append(header, batch, epoch)

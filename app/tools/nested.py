"""Calls that a tool body makes of other tools: one at a time, in the order asked, none left when the body has ended."""

import asyncio
import logging
from contextvars import ContextVar
from typing import Any

from app.session.errors import AgentClosed
from app.session.events import ToolNested
from app.session.values import encode
from app.tools.types import Execute, ToolExecution, ToolResult

logger = logging.getLogger(__name__)


class NestedCalls:
    """The nested calls of one execution. `execute` runs each like any call; ids count on if the body runs again."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._asked = 0
        self._is_open = False
        self._loop = asyncio.get_running_loop()
        self._one_at_a_time = asyncio.Lock()  # first come, first served
        self._tasks: set[asyncio.Task[ToolResult]] = set()
        self._running: asyncio.Task[Any] | None = None

    def open(self) -> None:
        """The body is about to start."""
        self._is_open = True

    async def call(self, outer: ToolExecution, name: str, arguments: Any) -> ToolResult:
        """Run a nested call of `outer` and record it; see ToolExecution.execute_nested.

        A caller that stops waiting ends a call that waits its turn, not one that runs. Raises UnstorableValue for
        arguments that are no JSON, AgentClosed after the body's end, and what recording raises.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(f"tool {outer.name!r} cannot make nested calls: only an async body can")
        if not self._is_open:
            raise AgentClosed(outer.session_id or "")
        if self in _callers.get():
            raise RuntimeError(f"a nested call of {outer.name!r} would wait for itself: use the execution it was given")
        raw_arguments = encode(arguments)
        self._asked += 1
        task = self._loop.create_task(self._run(_child(outer, f"{outer.call_id}:{self._asked}", name, raw_arguments)))
        self._tasks.add(task)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            if task is not self._running:
                task.cancel()
            raise
        self._tasks.discard(task)
        return task.result()

    async def _run(self, child: ToolExecution) -> ToolResult:
        async with self._one_at_a_time:
            self._running = asyncio.current_task()
            _callers.set((*_callers.get(), self))
            try:
                result = await self._execute(child)
                if child.record is not None:
                    await child.record(_event(child, result))
                return result
            finally:
                self._running = None

    async def close(self) -> None:
        """The body has ended: end the calls that wait their turn, and wait for the one that runs."""
        self._is_open = False
        for task in self._tasks:
            if task is not self._running:
                task.cancel()
        try:
            if self._tasks:
                await asyncio.wait(self._tasks)
        except asyncio.CancelledError:
            await self.cancel()
            raise
        self._tell()

    async def cancel(self) -> None:
        """End every call, also the one that runs, and wait for that: the task around all of them was cancelled."""
        self.abandon()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tell()

    def abandon(self) -> None:
        """End every call without waiting: the process is being stopped."""
        self._is_open = False
        for task in self._tasks:
            task.cancel()

    def _tell(self) -> None:
        for task in self._tasks:
            if not task.cancelled() and (error := task.exception()) is not None:  # its caller waits no longer
                logger.warning("a nested call could not be recorded: %s", type(error).__name__, exc_info=error)
        self._tasks.clear()


_callers: ContextVar[tuple[NestedCalls, ...]] = ContextVar("callers", default=())
"""Whose nested calls the current code is part of."""


def _child(outer: ToolExecution, call_id: str, name: str, raw_arguments: str) -> ToolExecution:
    return ToolExecution(
        name=name,
        raw_arguments=raw_arguments,
        call_id=call_id,
        signal=outer.signal,
        session=outer.session,
        turn=outer.turn,
        step=outer.step,
        parent=outer,
        accept=outer.accept,
        record=outer.record,
    )


def _event(child: ToolExecution, result: ToolResult) -> ToolNested:
    assert child.turn is not None
    assert child.step is not None
    top = child
    while top.parent is not None:  # the log knows the top-level call; that a nested one made this shows in its id
        top = top.parent
    failure = result.failure
    error = None if failure is None else {"code": failure.code, "message": failure.message}
    return ToolNested(
        child.turn, child.step, top.call_id, child.call_id, child.name, child.raw_arguments, failure is not None, error
    )

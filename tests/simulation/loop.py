"""An event loop with virtual time on which whole processes live, stop and die: the same seed, the same run.

Callbacks run in the order asyncio promises; only what the simulated world takes its time for is drawn by lot. So every
run is one that a real loop could have had.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Stuck(Exception):
    """Nothing can run any more, or more has run than any world needs."""


class Process:
    """What would be a process of its own: its tasks go on together, stand still together, and end together."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.steps = 0
        self.kill_at: int | None = None
        self._loop = loop
        self._until_s = 0.0
        self._held: list[Any] = []

    def spawn(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task of this process; the tasks it makes are of this process too."""
        context = contextvars.copy_context()
        context.run(_current.set, self)
        return self._loop.create_task(main, context=context)

    def kill(self) -> None:
        """SIGKILL: not one more line of it runs, no `finally` either."""
        self.is_dead = True

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT that much later; a machine that swaps or was cut off looks the same."""
        self._until_s = max(self._until_s, self._loop.time() + seconds)
        self._loop.call_at(self._until_s, self._go_on, context=contextvars.Context())

    def takes(self, handle: Any) -> bool:
        """Whether a callback may run now. Of one that may not, the process keeps hold."""
        if self.kill_at is not None and self.steps >= self.kill_at:
            self.kill()
        if self.is_dead or self._until_s > self._loop.time():
            self._held.append(handle)
            return False
        self.steps += 1
        return True

    def _go_on(self) -> None:
        if not self.is_dead and self._loop.time() >= self._until_s:
            held, self._held = self._held, []
            self._loop.run_next(held)


class SimulatedLoop(asyncio.BaseEventLoop):
    """`time()` starts at 0 seconds and jumps to the next timer when nothing is ready. Threads run in place."""

    def __init__(self, seed: int, max_steps: int = 400_000) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.steps = 0
        self._now_s = 0.0
        self._max_steps = max_steps
        self._tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now_s

    def run_next(self, handles: list[Any]) -> None:
        """Queue callbacks behind those that are ready."""
        self._ready.extend(handles)

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """What a thread would do, done at once after a moment."""
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if future.done():
                return
            try:
                future.set_result(function(*arguments))
            except Exception as error:  # as a thread would hand it over
                future.set_exception(error)

        self.call_later(self.random.expovariate(1000), work)
        return future

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Any, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        """Tasks are kept: collected, those of the dead would run their `finally`."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context)
        self._tasks.append(task)
        return task

    # ---------------------------------------------------------------------------------------- the base class's needs

    _ready: Any
    _scheduled: Any

    def _process_events(self, events: Any) -> None:
        """There are no files."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def _run_once(self) -> None:
        if not self._ready:
            self._pass_time()
        if not self._ready:
            return
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        process = handle._context.get(_current)
        if process is not None and not process.takes(handle):
            return
        self.steps += 1
        if self.steps > self._max_steps:
            raise Stuck(f"{self.steps} steps, and no end of it")
        handle._run()

    def _pass_time(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        if not self._scheduled:
            raise Stuck(f"nothing can run any more at {self._now_s:.3f} s")
        self._now_s = max(self._now_s, self._scheduled[0]._when)
        while self._scheduled and self._scheduled[0]._when <= self._now_s:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                self._ready.append(handle)


_ended: list[SimulatedLoop] = []
"""Loops and what was left standing on them, for the same reason: worlds are played in a child that just exits."""


def run(main: Callable[[SimulatedLoop], Coroutine[Any, Any, T]], seed: int) -> T:
    """What `main` returns or raises, in virtual time. What it leaves running is never heard of again."""
    loop = SimulatedLoop(seed)
    _ended.append(loop)
    return loop.run_until_complete(main(loop))

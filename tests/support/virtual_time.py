"""An event loop whose clock jumps: when nothing is ready it is the time of the next timer, so no test ever waits.

Because the clock moves only when nothing can run, `await all_quiet()` means: all that could happen by itself has
happened. A thread is not waited for while a timer is set, so a test in virtual time keeps to async bodies.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Told how long it may wait, it does not, and moves the clock by that."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # no timer is set: only a thread or a file can go on
            return super().select(None)
        ready = super().select(0)
        if not ready and timeout > 0:
            self.now_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 seconds."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._clock_resolution = 1e-9  # less than any timer here; more than what adding up floats may be off

    def time(self) -> float:
        return self._jumping.now_s


def run(main: Coroutine[Any, Any, T]) -> T:
    """What `main` returns or raises, run to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Makes an async test one that is run in virtual time; its fixtures are set up outside of that."""

    @wraps(test)
    def in_virtual_time(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(test(*args, **kwargs))

    return in_virtual_time


async def all_quiet() -> None:
    """Return when nothing more can happen by itself, in less than a microsecond of virtual time."""
    await asyncio.sleep(1e-6)


async def waits(task: asyncio.Future[Any]) -> bool:
    """Whether it is not done once all that can happen by itself has happened."""
    await all_quiet()
    return not task.done()

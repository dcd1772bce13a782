"""A process of its own for a test, to be killed at a chosen place: `Child("module:function", ...)`.

The function is async, is given the words as they are, says with `mark` how far it has come, and may wait for `told`.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

ROOT = Path(__file__).resolve().parents[2]


class Child:
    """A running child process; left, it is dead, whatever happened."""

    def __init__(self, function: str, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.support.child", function, *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_for(self, text: str) -> None:
        """Return when the child has marked this; fails if it marks something else first, or ends."""
        marked = self.marked()
        if marked != text:
            self._process.kill()
            raise AssertionError(f"the child marked {marked!r}, not {text!r}:\n{self._process.communicate()[1]}")

    def marked(self) -> str:
        """What the child marks next; "" if it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def tell(self, text: str) -> None:
        """Say something to the child, which waits for it with `told`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead."""
        self._process.send_signal(signal.SIGKILL)
        assert self._process.wait() == -signal.SIGKILL

    def ended(self) -> tuple[int, str]:
        """Its exit code (negative: the signal that ended it) and what it wrote to stderr, once it has ended."""
        _, errors = self._process.communicate()
        return self._process.returncode, errors


def mark(text: str) -> None:
    """Said by the child: it has come so far."""
    print(text, flush=True)


async def told() -> str:
    """Awaited by the child: what the test tells it next."""
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.rstrip("\n")


async def for_ever() -> NoReturn:
    """Where a child waits to be killed."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets that event")


def main(function: str, *words: str) -> None:
    module, name = function.split(":")
    asyncio.run(getattr(importlib.import_module(module), name)(*words))


if __name__ == "__main__":
    main(*sys.argv[1:])

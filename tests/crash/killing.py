"""Children from outside: started in milliseconds, awaited at a place, and killed there."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from tests.crash.child import ENDED, Part, main
from tests.support.stores import Place

# A server that has everything imported, and neither threads nor an event loop, forks them.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["pytest", "tests.crash.child", "tests.crash.working"])


class Process:
    """A child that plays its part; left, it is dead, whatever happened."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._child, theirs = FORKS.Pipe()
        self._process = FORKS.Process(target=main, args=(theirs, part))
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._child.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def is_held(self) -> bool:
        """Wait until it has come to its place (yes), or played its part to the end (no). Fails if it failed."""
        said = self._child.recv()
        assert said in (self._part.hold, ENDED), f"the child failed:\n{said}"
        return bool(said != ENDED)

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.join()
        assert self._process.exitcode == -signal.SIGKILL

    def go_on(self) -> None:
        """Let a held one go on, to its end."""
        self._child.send(None)
        assert not self.is_held()

    def is_cut(self) -> bool:
        """Wait until the kernel has ended it in mid-write (yes), or it has played its part to the end (no)."""
        try:
            said = self._child.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            assert self._process.exitcode == -signal.SIGXFSZ
            return True
        assert said == ENDED, f"the child failed:\n{said}"
        return False


@contextmanager
def held(place: Place, hold: str, story: str = "text", play: str = "tell") -> Iterator[Process]:
    """A child that is stopped at this place."""
    with Process(Part(play, place.words, story, hold)) as process:
        assert process.is_held(), f"the child never came to {hold!r}"
        yield process


def killed_at(place: Place, hold: str, story: str = "text", play: str = "tell") -> None:
    """Have a child play until it comes to this place, and kill it there."""
    with held(place, hold, story, play) as process:
        process.kill()

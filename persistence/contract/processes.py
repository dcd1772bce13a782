"""Another process with a store of the same data: it tells what it does, and is stopped or killed in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeAlias

import pytest

from app.session.persistence import SessionPersistence
from persistence.contract.base import Contract

_FORKS = multiprocessing.get_context("forkserver")  # from a process without threads, as this one may have many
_SILENT_S = 60.0

Job: TypeAlias = Callable[..., Awaitable[None]]
"""Done with a store, open, and the line; with arguments of its own after these."""


class Line:
    """What a job has to the process that started it. What it says may be said in any thread."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._saying = threading.Lock()

    def say(self, *words: Any) -> None:
        """Tell: once this returns it will be heard, even if this process is killed."""
        with self._saying:
            self._pipe.send(words)

    async def wait_for_word(self) -> Any:
        """The next word from the other side."""
        return await asyncio.to_thread(self._pipe.recv)


@dataclass(frozen=True, slots=True)
class _Failed:
    traceback: str


class OtherProcess:
    """A process that opens a store of the data in a folder and does a job: a function of a module. Left, it is dead.

    It makes the store as the contract's test class does: whatever `make_store` takes from `self` has to be picklable.
    """

    def __init__(self, contract: Contract, folder: Path, job: Job, *arguments: Any) -> None:
        self._line, theirs = _FORKS.Pipe()
        self._process = _FORKS.Process(target=_main, args=(theirs, contract, folder, job, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        self._process.join()
        self._process.close()
        self._line.close()

    async def hear(self) -> tuple[Any, ...] | None:
        """What it tells next; None once it has ended and nothing is left to hear. Raises what made it fail."""
        words: tuple[Any, ...] | _Failed | None = await asyncio.to_thread(self._receive)
        if isinstance(words, _Failed):
            raise AssertionError(f"the other process failed:\n{words.traceback}")
        return words

    async def hear_until(self, *last: Any) -> list[tuple[Any, ...]]:
        """What it tells before these words, or else until it has ended."""
        heard: list[tuple[Any, ...]] = []
        while (words := await self.hear()) not in (None, last):
            assert words is not None
            heard.append(words)
        return heard

    async def hear_rest(self) -> list[tuple[Any, ...]]:
        """All that it tells until it has ended, by itself or because it was killed."""
        return await self.hear_until(None)

    def say(self, word: Any = None) -> None:
        """Give it a word that it waits for."""
        self._line.send(word)

    def stop(self) -> None:
        """Let it stand still, wherever it is: it may hold a lock of the store."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End `stop`."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without another instruction. What it said can still be heard."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(self._process.pid, number)

    def _receive(self) -> Any:
        try:
            if not self._line.poll(_SILENT_S):
                raise AssertionError(f"the other process has told nothing for {_SILENT_S:g} seconds")
            return self._line.recv()
        except (EOFError, OSError):  # the latter if it was killed while it said something
            self._process.join()
        if self._process.exitcode not in (0, -signal.SIGKILL):
            raise AssertionError("the other process cannot begin: its standard error says why")
        return None


class AmongProcesses(Contract):
    """A topic for which other processes are needed. `in_one_process` says why there can be none, where that is so."""

    in_one_process: ClassVar[str | None] = None

    @pytest.fixture
    def elsewhere(self, tmp_path: Path) -> Callable[..., OtherProcess]:
        """Makes another process, given a job and its arguments."""
        if self.in_one_process is not None:
            assert not self.durable, "what is durable can be opened by another process"
            pytest.skip(f"not run: {self.in_one_process}")
        return partial(OtherProcess, self, tmp_path)


# ---------------------------------------------------------------------------------------- in the other process


def _main(pipe: Connection, contract: Contract, folder: Path, job: Job, *arguments: Any) -> None:
    try:
        asyncio.run(_do(contract.make_store(folder), job, Line(pipe), *arguments))
    except BaseException:  # whatever it is: the parent tells it
        pipe.send(_Failed(traceback.format_exc()))
        sys.exit(1)


async def _do(store: SessionPersistence, job: Job, *arguments: Any) -> None:
    await store.open()
    await job(store, *arguments)
    await store.close()

"""Ctrl-C and SIGTERM while an agent runs: the first one ends the turn properly, the second one the process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from app.agent.agent import Agent
from app.entrypoints.exits import CANCELLED, TERMINATED
from app.entrypoints.output import Output


class Stopping:
    """Made inside the task that does the work. `exit_code` is set as soon as the user or the system wants an end.

    Ctrl-C cancels the turn and lets it end; with no agent there yet, and for SIGTERM, the task is cancelled, and what
    it has opened closes in order; while it closes (`is_closing`) a signal only sets the code. A second signal of either
    kind ends the process at once; the log is closed when it is resumed.
    """

    def __init__(self, output: Output) -> None:
        self.exit_code: int | None = None
        self.agent: Agent | None = None
        self.is_closing = False
        self._output = output
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)

    def _interrupt(self) -> None:
        self._stop(CANCELLED)
        self._output.note(("stopping; Ctrl-C again stops at once, and the session can still be resumed", "yellow"))
        if self.agent is None:
            self._cancel_task()
        else:
            self.agent.cancel("user")

    def _terminate(self) -> None:
        self._stop(TERMINATED)
        self._cancel_task()

    def _stop(self, exit_code: int) -> None:
        if self.exit_code is not None:
            leave_at_once(exit_code)
        self.exit_code = exit_code

    def _cancel_task(self) -> None:
        if self._task is not None and not self.is_closing:
            self._task.cancel()


def leave_at_once(exit_code: int) -> None:
    """End the process without waiting for anything: threads, tasks, a write that has begun."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # nobody reads it any more
            pass
    os._exit(exit_code)

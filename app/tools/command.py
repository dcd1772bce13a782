"""Runs one command for a tool: bounded in time and output, without our secrets, never outliving this process."""

import asyncio
import errno
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.tools.types import ToolError

GRACE_S = 2.0
KEEP_BYTES = 65_536

SUPERVISOR = Path(__file__).with_name("supervisor.py")
_READ_BYTES = 65_536
_PIPE_BYTES = 1_048_576  # the most that Linux lets an ordinary process leave unread in a pipe
_SECRET_NAME = re.compile(
    r"^BEFOREHAND_|KEY|SECRET|TOKEN|PASSW|PASSPHRASE|PASSFILE|CREDENTIAL|COOKIE"
    r"|(^|_)(AUTH|DSN|JWT|PASS|PAT|PWD|SAS)(_|$)",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"[a-z][a-z0-9+.-]*://[^/?#]*:.*@"  # a password in an address
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|\b(sk-|sk_live_|gh[opsu]_|github_pat_|glpat-|xox[abeprs]-|AKIA)\w",
    re.IGNORECASE,
)
_NO_SECRET = frozenset({"PWD", "OLDPWD"})


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended and what it printed.

    `exit_code` is None if a signal ended it, `signal` its name then. Bytes that are not UTF-8 became U+FFFD. Of output
    that was too long the first and the last part are kept, with a line between them that says how much is missing.
    """

    ended: Literal["exited", "signalled", "timed_out", "cancelled"]
    exit_code: int | None
    signal: str | None
    stdout: str
    stdout_truncated: bool
    stderr: str
    stderr_truncated: bool


async def run(
    command: Sequence[str],
    *,
    directory: Path,
    environment: Mapping[str, str],
    timeout_s: float,
    cancelled: Callable[[], Awaitable[object]],
    grace_s: float = GRACE_S,
    keep_bytes: int = KEEP_BYTES,
) -> CommandResult:
    """Run a program with its arguments (no shell) in `directory`, with an empty standard input, and wait for its end.

    Its process group is ended, by SIGTERM and `grace_s` later by SIGKILL, after `timeout_s`, when `cancelled()`
    returns, when the task that waits here is cancelled, and when this process is gone, by SIGKILL too: a small
    supervisor process starts the command and watches a socket of ours, which the kernel closes however we end.
    What the command leaves behind in its group is killed when it ends. A process that moves to a group of its own, and
    the command of a supervisor that is itself killed, escape: this keeps order, it is no sandbox.

    Raises ToolError if the command did not start (`COMMAND_NOT_FOUND`, `COMMAND_NOT_STARTED`, `INVALID_ARGUMENTS`), and
    `COMMAND_LOST` if somebody killed the supervisor, so that nothing is known of the end.
    """
    _refuse_unusable(command)
    with ExitStack() as stack:
        ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
        stdout = stack.enter_context(closing(_Output(keep_bytes)))
        stderr = stack.enter_context(closing(_Output(keep_bytes)))
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(SUPERVISOR), "0", str(round(grace_s * 1000)), *command),
                stdin=theirs.fileno(),
                stdout=stdout.writer,
                stderr=stderr.writer,
                cwd=str(directory),
                env={**environment, "PWD": str(directory)},
                start_new_session=True,  # no terminal: a Ctrl-C there is ours to pass on, a password is not asked for
            )
        except OSError as error:
            raise ToolError("COMMAND_NOT_STARTED", f"the command could not be started: {error}") from error
        theirs.close()
        stdout.start()
        stderr.start()
        reason = await _wait(process, ours, timeout_s, cancelled)
        stdout.finish()
        stderr.finish()
        kind, number, killed = _outcome(ours)
    if kind == "refused":
        raise _not_started(command[0], number)
    return CommandResult(
        ended=reason if killed and reason is not None else "exited" if kind == "exited" else "signalled",
        exit_code=number if kind == "exited" else None,
        signal=_signal_name(number) if kind == "signalled" else None,
        stdout=stdout.text(),
        stdout_truncated=stdout.left_out > 0,
        stderr=stderr.text(),
        stderr_truncated=stderr.left_out > 0,
    )


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without our own settings and without what looks like a key, a secret, a token or a password.

    It does so by its name (`*KEY*`, `*TOKEN*`, `*PASSW*`, `*_DSN`, ...) or by its value (an address with a password in
    it, a private key, the prefix of a well-known kind of token).
    """
    return {
        name: value
        for name, value in environment.items()
        if name in _NO_SECRET or not (_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))
    }


class _Output:
    """One stream of the command: read as it comes so that the command never has to wait, its two ends kept."""

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0
        self._loop = asyncio.get_running_loop()
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)

    def start(self) -> None:
        """Begin to read: the command's side has the other end by now."""
        os.close(self.writer)
        self.writer = -1
        self._loop.add_reader(self._reader, self._read)

    def finish(self) -> None:
        """Take what the ended command left in the pipe. Who else may still hold the other end is not waited for."""
        limit = self._size + _PIPE_BYTES
        while self._size < limit and self._read():
            pass

    def close(self) -> None:
        self._loop.remove_reader(self._reader)
        for fd in (self._reader, self.writer):
            if fd >= 0:
                os.close(fd)

    @property
    def left_out(self) -> int:
        return self._size - len(self._head) - min(len(self._tail), self._keep_bytes)

    def text(self) -> str:
        if not self.left_out:
            return (self._head + self._tail).decode("utf-8", "replace")
        head, tail = (part.decode("utf-8", "replace") for part in (self._head, self._tail[-self._keep_bytes :]))
        return f"{head}\n[... {self.left_out} bytes left out ...]\n{tail}"

    def _read(self) -> bool:
        try:
            chunk = os.read(self._reader, _READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(self._reader)
            return False
        self._size += len(chunk)
        room = self._keep_bytes - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self._keep_bytes:
            del self._tail[: -self._keep_bytes]
        return True


async def _wait(
    process: Process, ours: socket.socket, timeout_s: float, cancelled: Callable[[], Awaitable[object]]
) -> Literal["timed_out", "cancelled"] | None:
    """Wait until the supervisor is gone, making it end the command in time; says why it was made to, if it was."""
    ended = asyncio.ensure_future(process.wait())
    asked = asyncio.ensure_future(cancelled())
    try:
        done, _ = await asyncio.wait({ended, asked}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        asked.cancel()
        ours.shutdown(socket.SHUT_WR)
        await asyncio.wait({ended, asked})  # unlike awaiting `ended`, a second cancellation leaves that alone
    if ended in done:
        return None
    return "cancelled" if asked in done else "timed_out"


def _outcome(ours: socket.socket) -> tuple[str, int, bool]:
    ours.setblocking(False)
    line = b""
    with suppress(BlockingIOError):
        line = ours.recv(256)  # a line is far shorter, and was written at once
    if not line:
        raise ToolError("COMMAND_LOST", "the command's supervisor was killed: the command may still be running")
    kind, number, killed = line.decode().split()
    return kind, int(number), killed == "1"


def _refuse_unusable(command: Sequence[str]) -> None:
    if not command or not command[0]:
        raise ToolError("INVALID_ARGUMENTS", "the command names no program")
    for position, argument in enumerate(command):
        if "\0" in argument or any("\ud800" <= character <= "\udfff" for character in argument):
            raise ToolError("INVALID_ARGUMENTS", f"argument {position} holds a NUL or an unpaired surrogate")


def _not_started(program: str, number: int) -> ToolError:
    if number == errno.ENOENT:
        return ToolError("COMMAND_NOT_FOUND", f"there is no program '{program}', or it is a script without interpreter")
    return ToolError("COMMAND_NOT_STARTED", f"'{program}' could not be started: {os.strerror(number)}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"

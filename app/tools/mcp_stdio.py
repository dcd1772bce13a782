"""Runs an MCP server as a child process that cannot outlive this one, and carries messages to and from it by lines."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.tools.command import SUPERVISOR

logger = logging.getLogger(__name__)

EXIT_S = 2.0
"""How long a server may take to end once its input has ended, and once more after SIGTERM; then it is killed."""
INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")

_CHUNK = 65_536


@asynccontextmanager
async def stdio(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path | None,
    max_message_bytes: int,
    heard: Callable[[str], None],
    told: Callable[[str], None],
) -> AsyncGenerator[tuple[Any, Any], None]:
    """Start a server; gives the two streams that a client's session works on. Leaving ends the server.

    Of our own environment it gets INHERITED, and `environment` over that. `heard` is given each line of its standard
    error, `told` what became of it. A line that is no message is passed over; one that is longer than
    `max_message_bytes` ends the conversation. However this process ends, the server is ended too, in the way that
    app.tools.command has. Raises OSError if nothing can be started.
    """
    import anyio

    server = await _Server.start(command, environment, directory, max_message_bytes)
    to_session, read_stream = anyio.create_memory_object_stream[Any](0)
    write_stream, from_session = anyio.create_memory_object_stream[Any](0)
    async with anyio.create_task_group() as pumps:
        pumps.start_soon(_receive, server.process.stdout, to_session, max_message_bytes, told)
        pumps.start_soon(_send, from_session, server.process.stdin, to_session)
        pumps.start_soon(_listen, server.process.stderr, heard)
        try:
            yield read_stream, write_stream
        finally:
            for stream in (to_session, read_stream, write_stream, from_session):
                stream.close()
            with anyio.CancelScope(shield=True):
                told(await server.end())
            pumps.cancel_scope.cancel()


async def _receive(output: asyncio.StreamReader, to_session: Any, limit: int, told: Callable[[str], None]) -> None:
    """Hand the messages on. What comes after the last one is thrown away, so that the server waits for no reader."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    with to_session, suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the session has ended
        while True:
            try:
                line = await output.readline()
            except ValueError:  # how a stream tells of a line over its limit
                told(f"it sent a message of more than {limit} bytes")
                break
            if not line:
                return
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                logger.debug("an MCP server wrote a line that is no message: %.200r", line)
                continue
            await to_session.send(SessionMessage(message))
    while await output.read(_CHUNK):
        pass


async def _send(from_session: Any, server_input: asyncio.StreamWriter, to_session: Any) -> None:
    async for sent in from_session:
        text: str = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            server_input.write(text.encode() + b"\n")
            await server_input.drain()
        except OSError:  # it reads no more; closing tells whoever waits for an answer
            to_session.close()
            return


async def _listen(errors: asyncio.StreamReader, heard: Callable[[str], None]) -> None:
    while True:
        try:
            line = await errors.readline()
        except ValueError:  # a line without end
            continue
        if not line:
            return
        heard(line.decode("utf-8", "replace").rstrip())


@dataclass(slots=True, eq=False)
class _Server:
    """The server by way of its supervisor, which reports on `control` and has left when that ends."""

    process: Any
    control: socket.socket
    report: asyncio.Future[bytes]

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], directory: Path | None, limit: int
    ) -> _Server:
        control, theirs = socket.socketpair()
        try:
            with theirs:
                process: Process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", str(SUPERVISOR), str(theirs.fileno()), f"{EXIT_S * 1000:.0f}"),
                    *command,
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=PIPE,
                    limit=limit,
                    pass_fds=[theirs.fileno()],
                    cwd=directory,
                    env={name: os.environ[name] for name in INHERITED if name in os.environ} | dict(environment),
                    start_new_session=True,
                )
        except BaseException:  # also when it is cancelled: nobody else knows of the socket
            control.close()
            raise
        control.setblocking(False)
        return cls(process, control, asyncio.ensure_future(asyncio.get_running_loop().sock_recv(control, 256)))

    async def end(self) -> str:
        """End its input and wait, then insist; how it ended."""
        # Not process.wait() alone: that also waits for whoever else has the pipes, a daemon it left behind, say.
        self.process.stdin.close()
        await asyncio.wait({self.report}, timeout=EXIT_S)
        if not self.report.done():
            self.control.shutdown(socket.SHUT_WR)
            await asyncio.wait({self.report}, timeout=2 * EXIT_S)
        if self.report.done():
            said = _in_words(self.report.result().decode())
        else:
            self.report.cancel()
            said = "it could not be ended"
        reaping = asyncio.ensure_future(self.process.wait())
        await asyncio.wait({reaping}, timeout=EXIT_S)
        reaping.cancel()
        self.process._transport.close()  # noqa: SLF001  # nothing public lets go of pipes that others may hold still
        self.control.close()
        return said


def _in_words(report: str) -> str:
    if not report:
        return "its supervisor was killed"
    kind, number, _ = report.split()
    if kind == "refused":
        return f"it could not be started: {os.strerror(int(number))}"
    return f"it ended with exit code {number}" if kind == "exited" else f"it was ended by signal {number}"

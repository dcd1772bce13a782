"""One connection to an MCP server: opened and closed in a task of its own, as the client's task groups demand."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.causes import describe
from app.tools.mcp_stdio import stdio
from app.tools.types import Effects, ToolError

if TYPE_CHECKING:
    from mcp import Client

logger = logging.getLogger(__name__)

CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class McpServer:
    """How to reach a server: `command` starts it as our child, or it listens at `url`.

    `tools` are those that are wanted, by the server's own names; None is all. `effects` go over what its hints say.
    """

    name: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    directory: Path | None = None
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tools: tuple[str, ...] | None = None
    effects: Mapping[str, Effects] = field(default_factory=dict)
    optional: bool = False
    timeout_s: float = 120.0
    connect_timeout_s: float = 30.0
    max_message_bytes: int = 32 * 1024 * 1024

    def redacted(self, text: str) -> str:
        """`text`, which others wrote, without what may be secret here: address, environment, headers."""
        values = " ".join((self.url or "", *self.environment.values(), *self.headers.values()))
        for secret in values.split():
            if len(secret) > 5:  # a shorter one is no secret, and would be found anywhere
                text = text.replace(secret, "[redacted]")
        return text


class Connection:
    """`client` may be used from any task until `close`. Made by `open`."""

    client: Client

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._said: deque[str] = deque(maxlen=1)
        self._fate: list[str] = []
        self._error: BaseException | None = None
        self._settled = asyncio.Event()
        self._leaving = asyncio.Event()
        self._task = asyncio.create_task(self._live(), name=f"MCP server {server.name}")

    @classmethod
    async def open(cls, server: McpServer) -> Connection:
        """Raises ToolError `MCP_UNAVAILABLE`, saying why and what the server said."""
        connection = cls(server)
        try:
            async with asyncio.timeout(server.connect_timeout_s):
                await connection._settled.wait()
        except BaseException as error:  # also when it is cancelled: nobody else knows of it
            await connection.close()
            if not isinstance(error, TimeoutError):
                raise
            connection._error = TimeoutError(f"no answer within {server.connect_timeout_s:g} s")
        if connection._error is not None:
            raise ToolError("MCP_UNAVAILABLE", connection._told()) from connection._error
        return connection

    async def close(self) -> None:
        """Leave the session and end a server that is our child."""
        self._leaving.set()
        if not self._settled.is_set():  # still on its way in
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=CLOSE_S)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_S)

    @property
    def fate(self) -> str:
        """What became of the server, as far as it is known."""
        return "; ".join(self._fate)

    async def answers(self) -> bool:
        """Whether the server still does what every server does."""
        try:
            async with asyncio.timeout(self._server.connect_timeout_s):
                await self.client.session.list_tools()
        except Exception as error:  # whatever it is, nothing can be done with this connection
            logger.info("MCP server %s does not answer: %s", self._server.name, self._server.redacted(describe(error)))
            return False
        return True

    async def _live(self) -> None:
        try:
            async with self._entered() as client:
                self.client = client
                self._settled.set()
                await self._leaving.wait()
        except (Exception, asyncio.CancelledError, BaseExceptionGroup) as error:  # of the client or the transport
            self._error = error
            logger.debug("MCP server %s: the connection ended", self._server.name, exc_info=True)
        finally:
            self._settled.set()

    def _entered(self) -> AbstractAsyncContextManager[Client]:
        from mcp import Client

        server = self._server
        transport: Any = _http(server)
        if server.command:
            transport = stdio(
                server.command,
                environment=server.environment,
                directory=server.directory,
                max_message_bytes=server.max_message_bytes,
                heard=self._hear,
                told=self._fate.append,
            )
        return Client(transport, message_handler=self._notice, cache=None)

    def _hear(self, line: str) -> None:
        line = self._server.redacted(line)
        self._said.append(line)
        logger.info("MCP server %s: %s", self._server.name, line)

    async def _notice(self, message: Any) -> None:
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            logger.warning("MCP server %s has other tools now; they are read at the next start", self._server.name)

    def _told(self) -> str:
        error = self._error
        while isinstance(error, BaseExceptionGroup):  # of the task groups in between
            error = error.exceptions[0]
        why = "" if error is None else self._server.redacted(describe(error))
        return f"the MCP server {self._server.name!r} cannot be used: {'; '.join([why, *self._fate, *self._said])}"


@asynccontextmanager
async def _http(server: McpServer) -> AsyncGenerator[tuple[Any, Any], None]:
    """The streams of a session with a server that listens at `url`. What it sends at once is bounded."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    limit = server.max_message_bytes

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self._stream:
                size += len(chunk)
                if size > limit:
                    raise httpx2.StreamError(f"it sent a message of more than {limit} bytes")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: httpx2.Response) -> None:
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = Bounded(response.stream)  # of an event stream each event is bounded, below

    assert server.url is not None
    timeout = httpx2.Timeout(server.connect_timeout_s, read=None)  # calls have limits of their own
    async with (
        httpx2.AsyncClient(headers=dict(server.headers), timeout=timeout, event_hooks={"response": [bound]}) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=limit) as streams,
    ):
        yield streams

"""Tools of MCP servers: found when the runtime starts, called over a connection that is made anew when it breaks."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from app.causes import describe, error_text
from app.session.errors import ConfigurationError
from app.tools.mcp_connection import Connection, McpServer
from app.tools.mcp_results import effects_of, tool_name, value_of
from app.tools.output import pointer
from app.tools.types import Effects, InvalidArguments, ToolError, ToolExecution

if TYPE_CHECKING:
    from mcp_types import Tool as ListedTool

logger = logging.getLogger(__name__)

MAX_PAGES = 100
MAX_PROBLEMS = 20


class McpTools:
    """The tools of one server: those that it had at `open`. A change of them later is logged, not followed."""

    def __init__(self, server: McpServer) -> None:
        self.name = f"mcp:{server.name}"
        self._server = server
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._is_doubtful = False

    async def open(self) -> tuple[McpTool, ...]:
        """Connect and list the tools. Raises ConfigurationError naming the server; an optional one has none then."""
        server = self._server
        try:
            return tuple(self._chosen(await self._list()))
        except (ToolError, ConfigurationError) as error:
            told = f"tools.mcp.{server.name}: {error_text(error)}"
            if not server.optional:
                raise ConfigurationError(told) from error
            logger.warning("%s; it is optional, so its tools are missing", told)
            return ()

    async def close(self) -> None:
        """Leave the server, and end it if it is our child. A call that is under way fails."""
        if self._connection is not None:
            await self._connection.close()

    async def call(self, tool: McpTool, arguments: dict[str, Any], execution: ToolExecution) -> Any:
        """The value of the result; None if the turn was cancelled meanwhile, which the server has been told.

        Raises ToolError: `MCP_UNAVAILABLE` if nothing was sent, `TOOL_OUTCOME_UNKNOWN` if no answer came back,
        `MCP_ERROR` if the answer was an error of the protocol, `MCP_INVALID_RESULT` if it was no result.
        """
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        meta: Any = {"beforehand/callId": execution.call_id, "beforehand/idempotencyKey": execution.idempotency_key}
        connection = await self._connected()
        asked = asyncio.ensure_future(connection.client.call_tool(tool.remote_name, arguments, meta=meta))
        forget = execution.signal.call_when_cancelled(asked.cancel)
        try:
            result = await asked
        except BaseException as error:
            self._is_doubtful = True
            if isinstance(error, asyncio.CancelledError) and not _is_being_cancelled():
                return None
            if not isinstance(error, Exception):
                raise
            told = connection.fate or self._server.redacted(error_text(error))
            after = "" if tool.effects == "read_only" else "; the call may have taken effect"
            if not isinstance(error, MCPError):
                raise ToolError("MCP_INVALID_RESULT", f"the server's answer is no result: {told}{after}") from error
            if error.code == CONNECTION_CLOSED:
                raise ToolError("TOOL_OUTCOME_UNKNOWN", f"no result came back: {told}{after}") from error
            raise ToolError("MCP_ERROR", f"the server answered with an error: {told}{after}") from error
        finally:
            forget()
        return value_of(result.model_dump(by_alias=True, mode="json", exclude_unset=True))

    async def _connected(self) -> Connection:
        """A connection that is alive as far as is known; after a call without a result the server is asked first."""
        async with self._connecting:
            if self._connection is not None and self._is_doubtful and not await self._connection.answers():
                await self._connection.close()
                self._connection = None
            self._is_doubtful = False
            if self._connection is None:
                self._connection = await Connection.open(self._server)
            return self._connection

    async def _list(self) -> list[ListedTool]:
        from mcp_types import PaginatedRequestParams

        session = (await self._connected()).client.session
        found: list[ListedTool] = []
        cursor = None
        try:
            async with asyncio.timeout(self._server.connect_timeout_s):
                for _ in range(MAX_PAGES):
                    page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
                    found += page.tools
                    cursor = page.next_cursor
                    if cursor is None:
                        return found
        except Exception as error:  # whatever the client makes of what no server should send
            told = " ".join(self._server.redacted(describe(error)).split())
            raise ConfigurationError(f"it does not list its tools: {told}") from error
        raise ConfigurationError(f"its list of tools has more than {MAX_PAGES} pages")

    def _chosen(self, listed: list[ListedTool]) -> Iterator[McpTool]:
        wanted, there = self._server.tools, [tool.name for tool in listed]
        if missing := [name for name in (*(wanted or ()), *self._server.effects) if name not in there]:
            raise ConfigurationError(f"it has no tools {', '.join(missing)}; it has {', '.join(there) or 'none'}")
        for tool in {tool.name: tool for tool in listed}.values():
            if wanted is None or tool.name in wanted:
                try:
                    yield McpTool(self, self._server, tool)
                except ValueError as error:
                    if wanted is not None:
                        raise ConfigurationError(f"its tool {tool.name!r} {error}") from error
                    logger.warning("tools.mcp.%s: its tool %r %s; it is left out", self._server.name, tool.name, error)


class McpTool:
    """A tool as the server describes it; arguments are checked against its schema before they are sent."""

    timeout_s: float | None
    reconcile = None

    def __init__(self, tools: McpTools, server: McpServer, listed: ListedTool) -> None:
        """Raises ValueError, saying what is wrong, for a schema that is none."""
        from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
        from jsonschema.validators import validator_for  # type: ignore[import-untyped]
        from referencing import Registry

        self.name = tool_name(server.name, listed.name)
        self.remote_name = listed.name
        self.source = tools.name
        self.description = listed.description or listed.title or ""
        self.input_schema: Mapping[str, Any] = listed.input_schema
        hints = listed.annotations.model_dump(by_alias=True) if listed.annotations else None
        self.effects: Effects = server.effects.get(listed.name) or effects_of(hints)
        self.timeout_s = server.timeout_s
        self._tools = tools
        try:
            validator = validator_for(self.input_schema, default=Draft202012Validator)
            validator.check_schema(self.input_schema)
        except Exception as error:  # whatever looking at it as a schema comes to
            raise ValueError(f"has a schema that is none: {error_text(error).splitlines()[0]}") from error
        self._validator = validator(self.input_schema, registry=Registry())  # an empty one: nothing is fetched

    def __repr__(self) -> str:
        return f"<McpTool {self.name}: {self.effects}>"

    def is_parallel_safe(self, arguments: Any) -> bool:
        return self.effects == "read_only"

    def validate(self, arguments: Any) -> dict[str, Any]:
        """The arguments as they are. Raises InvalidArguments."""
        problems = [
            f'at "{pointer(arguments, [*error.absolute_path], is_missing=False)}": {error.message:.200}'
            for error, _ in zip(self._validator.iter_errors(arguments), range(MAX_PROBLEMS), strict=False)
        ]
        if not problems and not isinstance(arguments, dict):
            problems = ['at "": not an object']
        if not problems and not _is_unicode(arguments):
            problems = ["they hold an unpaired surrogate, which the protocol cannot carry"]
        if problems:
            raise InvalidArguments("; ".join(problems))
        return dict(arguments)

    async def run(self, validated: dict[str, Any], execution: ToolExecution) -> Any:
        return await self._tools.call(self, validated, execution)

    def to_json(self, value: Any) -> Any:
        return value


def _is_unicode(arguments: dict[str, Any]) -> bool:
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

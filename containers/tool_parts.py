"""Makes the tools that settings ask for: those that are there at once, and the sources that have to be opened first."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from app.session.errors import ConfigurationError
from app.tools.builtin import workspace_tools
from app.tools.fetch import fetch_tool
from app.tools.mcp import McpTools
from app.tools.mcp_connection import McpServer
from app.tools.sql import SqlReader
from app.tools.tool_set import ToolSet, ToolSource
from app.tools.types import Tool, ToolError
from containers import kinds
from containers.extensions import Catalogue, no_such
from containers.settings import Settings
from containers.tool_settings import UNLESS_NAMED, McpServerSettings, Sql

MCP = "mcp:"

_SERVER_NAME = re.compile(r"[A-Za-z0-9-]{1,32}")
_URL = re.compile(r"https?://[^/\s]+\S*")


def tool_set(settings: Settings) -> ToolSet:
    """The tools of `tools.enabled`, in that order, and after them those of MCP servers. Does no I/O.

    Raises ConfigurationError, one line with every unknown name.
    """
    given = settings.tools
    reader = SqlReader(
        lambda: _connect(given.sql),
        timeout_s=given.sql.timeout_s,
        max_rows=given.sql.max_rows,
        max_bytes=given.sql.max_bytes,
    )
    fetch = fetch_tool(
        given.fetch.allow,
        tuple(_own_ports(settings)),
        timeout_s=given.fetch.timeout_s,
        max_bytes=given.fetch.max_bytes,
    )
    built_in = {tool.name: tool for tool in (*workspace_tools(Path(settings.workspace)), fetch, reader.tool)}
    catalogue: Catalogue[Tool] = Catalogue(kinds.TOOL, built_in, given.extra, given.enabled)
    servers = [MCP + name for name in given.mcp]
    enabled = (*UNLESS_NAMED, *catalogue.extra, *servers) if given.enabled is None else given.enabled
    _refuse_names(settings, enabled, {*catalogue.there, *servers}, catalogue)
    sources: list[ToolSource] = [
        McpTools(_mcp_server(name, server)) for name, server in given.mcp.items() if MCP + name in enabled
    ]
    if reader.tool.name in enabled:
        if given.sql.dsn is None:
            raise ConfigurationError(
                "tools.sql.dsn: not set; the tool sql_read needs it: postgresql://user@host/database"
            )
        sources.append(reader)
    return ToolSet(
        [catalogue.there[name] for name in enabled if name in catalogue.there],
        sources,
        reconcile_timeout_s=settings.reconcile_timeout_s,
        max_result_bytes=settings.max_tool_result_bytes,
    )


def _refuse_names(settings: Settings, enabled: tuple[str, ...], there: set[str], catalogue: Catalogue[Tool]) -> None:
    unknown = [name for name in dict.fromkeys(enabled) if name not in there]
    twice = [name for name in dict.fromkeys(enabled) if enabled.count(name) > 1]
    if unknown or twice:
        known = sorted(catalogue.known() | there)
        faults = [no_such("tool", name, known) for name in unknown] + [f"{name!r} is there twice" for name in twice]
        told = f"tools.enabled ({settings.source_of('tools.enabled')}): {'; '.join(faults)}"
        raise ConfigurationError(f"{told}; known names: {', '.join(known)}")


def _mcp_server(name: str, given: McpServerSettings) -> McpServer:
    """Raises ConfigurationError."""
    setting = f"tools.mcp.{name}"
    if not _SERVER_NAME.fullmatch(name):
        raise ConfigurationError(f"{setting}: the name of a server is 1 to 32 of A-Z a-z 0-9 -")
    if (given.command is None) == (given.url is None):
        raise ConfigurationError(f"{setting}: set either command or url")
    url = None if given.url is None else given.url.get_secret_value().strip()
    if url is not None and not _URL.fullmatch(url):
        raise ConfigurationError(f"{setting}.url: takes http(s)://host/path")
    if importlib.util.find_spec("mcp") is None:
        raise ConfigurationError(f"{setting}: needs the extra `mcp`: pip install 'beforehand[mcp]'")
    if missing := [variable for variable in given.inherit if variable not in os.environ]:
        raise ConfigurationError(f"{setting}.inherit: not in the environment: {', '.join(missing)}")
    inherited = {variable: os.environ[variable] for variable in given.inherit}
    return McpServer(
        name,
        () if given.command is None else (given.command, *given.args),
        inherited | _plain(given.env),
        given.cwd,
        url,
        _plain(given.headers),
        given.tools,
        given.effects,
        given.optional,
        given.timeout_s,
        given.connect_timeout_s,
        given.max_message_bytes,
    )


def _plain(secrets: dict[str, SecretStr]) -> dict[str, str]:
    return {name: secret.get_secret_value() for name, secret in secrets.items()}


def _own_ports(settings: Settings) -> Iterator[int]:
    """Where the runtime's own databases listen: nothing that a model says may go there."""
    for dsn in (settings.persistence.dsn, settings.tools.sql.dsn):
        if dsn is not None:
            from persistence.postgres.dsn import Dsn

            yield from (host.port for host in Dsn.parse(dsn.get_secret_value()).hosts)


async def _connect(given: Sql) -> Any:
    """A connection to the first host of `tools.sql.dsn` that lets us in, encrypted by the rules of the store's own."""
    import asyncpg

    from persistence.postgres import errors
    from persistence.postgres.dsn import Dsn

    assert given.dsn is not None
    dsn = Dsn.parse(given.dsn.get_secret_value())
    said: list[str] = []
    for host in dsn.hosts:
        try:
            return await asyncpg.connect(
                host=host.name,
                port=host.port,
                user=dsn.user,
                password=dsn.password,
                database=dsn.database,
                ssl=dsn.encryption(host, None),
                timeout=given.timeout_s,
                command_timeout=given.timeout_s,
                statement_cache_size=0,  # works behind a pooler
                server_settings={"application_name": "beforehand sql_read"},
            )
        except errors.FOREIGN as error:
            said.append(f"{host}: {errors.reason(error)}")
    raise ToolError("SQL_UNAVAILABLE", f"no server lets us in: {'; '.join(said)}") from None

"""What can be set of the tools: which an agent has, where MCP servers are, what may be fetched and asked."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from containers.fields import Count, Names, Paths, Seconds, Section, Text

WORKSPACE_TOOLS = ("list_files", "read_file", "search_files", "write_file", "append_file", "run_command")
BUILT_IN_TOOLS = (*WORKSPACE_TOOLS, "fetch_url", "sql_read")
UNLESS_NAMED = WORKSPACE_TOOLS[:-1]
"""The built-in tools that an agent has when `tools.enabled` is not set: all others have to be asked for."""


class McpServerSettings(Section):
    """A server that is started as a child process (`command`, and what follows it), or listens at `url`.

    `inherit` are the variables of our own environment that it gets besides the harmless ones. What may hold a key is
    secret: values of `env` and `headers`, and the address.
    """

    command: Text | None = None
    args: tuple[str, ...] = Field((), description="a list of texts")
    env: dict[str, SecretStr] = Field({}, description="a table, each NAME = a text")
    inherit: Names = ()
    cwd: Path | None = Field(None, description="the path of a directory")
    url: SecretStr | None = Field(None, description="http(s)://host/path")
    headers: dict[str, SecretStr] = Field({}, description="a table, each name = a text")
    tools: Names | None = None
    effects: dict[str, Literal["read_only", "idempotent", "side_effect"]] = Field(
        {}, description="a table, each tool = read_only, idempotent or side_effect"
    )
    optional: bool = Field(False, description="true or false")
    timeout_s: Seconds = 120.0
    connect_timeout_s: Seconds = 30.0
    max_message_bytes: Count = 32 * 1024 * 1024


class Fetch(Section):
    """`allow` are hosts and networks that may be fetched from although they are not public."""

    allow: Names = ()
    timeout_s: Seconds = 30.0
    max_bytes: Count = 256 * 1024


class Sql(Section):
    """The database that `sql_read` asks; never that of the sessions."""

    dsn: SecretStr | None = Field(None, description="postgresql://user:password@host,host/database")
    timeout_s: Seconds = 10.0
    max_rows: Count = 200
    max_bytes: Count = 256 * 1024


class Tools(Section):
    """`enabled` not set: those of UNLESS_NAMED, every one of `extra`, and all that the servers of `mcp` have.

    The tools of an MCP server are named together: `mcp:NAME`.
    """

    enabled: Names | None = None
    extra: Paths = Field({})
    mcp: dict[str, McpServerSettings] = Field({}, description="a table of settings for each server")
    fetch: Fetch = Fetch()
    sql: Sql = Sql()

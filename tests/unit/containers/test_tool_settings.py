"""Settings of tools become tools and sources, or one error that names the setting; nothing is opened for that."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.session.errors import ConfigurationError
from app.tools.schema import tool
from app.tools.tool_set import ToolSet
from app.tools.types import Tool
from containers.application import build
from containers.lifespan import Lifespan
from containers.settings import load_settings
from containers.shown import MASK, settings_with_sources
from containers.tool_parts import tool_set

ROOT = Path(__file__).parents[3]
SECRETS = {
    "BEFOREHAND_TOOLS__MCP__WEB__HEADERS__AUTHORIZATION": "Bearer s3cret",
    "BEFOREHAND_TOOLS__MCP__WEB__URL": "https://example.com/s3cret/mcp",
    "BEFOREHAND_TOOLS__SQL__DSN": "postgresql://u:s3cret@h/d",
}


def problem(**tools: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        tool_set(load_settings(tools=tools))
    return str(error.value)


def sources(tools: ToolSet) -> list[str]:
    return [getattr(source, "name", type(source).__name__) for source in tools._sources]


def test_all_servers_are_on_unless_enabled_names_what_is() -> None:
    mcp: Any = {"a": {"command": "a"}, "b": {"url": "http://localhost/mcp"}}
    assert sources(tool_set(load_settings(tools={"mcp": mcp}))) == ["mcp:a", "mcp:b"]
    chosen = tool_set(load_settings(tools={"mcp": mcp, "enabled": ["mcp:b", "read_file"]}))
    assert (sources(chosen), list(chosen.tools)) == (["mcp:b"], ["read_file"])
    assert sources(tool_set(load_settings(tools={"mcp": mcp, "enabled": []}))) == []


def test_fetch_and_sql_have_to_be_asked_for() -> None:
    usual = list(tool_set(load_settings()).tools)
    assert usual == ["list_files", "read_file", "search_files", "write_file", "append_file"]
    both = tool_set(load_settings(tools={"enabled": ["sql_read", "fetch_url"], "sql": {"dsn": "postgresql://h/d"}}))
    assert (list(both.tools), sources(both)) == (["sql_read", "fetch_url"], ["SqlReader"])
    assert {tool.effects for tool in both.tools.values()} == {"read_only"}


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        ({"mcp": {"a": {}}}, "tools.mcp.a: set either command or url"),
        ({"mcp": {"a": {"command": "x", "url": "http://h/"}}}, "tools.mcp.a: set either command or url"),
        ({"mcp": {"a_b": {"command": "x"}}}, "tools.mcp.a_b: the name of a server is 1 to 32 of A-Z a-z 0-9 -"),
        ({"mcp": {"a": {"url": "ftp://s3cret/"}}}, "tools.mcp.a.url: takes http(s)://host/path"),
        (
            {"mcp": {"a": {"command": "x", "inherit": ["NOT_THERE"]}}},
            "tools.mcp.a.inherit: not in the environment: NOT_THERE",
        ),
        (
            {"mcp": {"a": {"command": "x"}}, "enabled": ["mcp:b"]},
            (
                "tools.enabled (argument): no tool is named 'mcp:b' (did you mean 'mcp:a'?); known names: append_file, "
                "fetch_url, list_files, mcp:a, read_file, run_command, search_files, sql_read, write_file"
            ),
        ),
        (
            {"fetch": {"allow": ["10.0.0.1/8"]}},
            "tools.fetch.allow: '10.0.0.1/8' is no host, address or network (10.0.0.1/8 has host bits set)",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_setting(tools: dict[str, Any], told: str) -> None:
    assert problem(**tools) == told


def test_a_wrong_value_in_a_server_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEFOREHAND_TOOLS__MCP__FILES__COMAND", "x")
    monkeypatch.setenv("BEFOREHAND_TOOLS__MCP__FILES__TIMEOUT_S", "never")
    with pytest.raises(ConfigurationError) as error:
        load_settings()
    assert sorted(str(error.value).splitlines()) == [
        (
            "tools.mcp.files.comand (BEFOREHAND_TOOLS__MCP__FILES__COMAND): names no setting; did you mean "
            "tools.mcp.files.command?"
        ),
        "tools.mcp.files.timeout_s (BEFOREHAND_TOOLS__MCP__FILES__TIMEOUT_S): takes a number of seconds above 0",
    ]


def test_without_the_extra_a_server_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert problem(mcp={"a": {"command": "x"}}) == "tools.mcp.a: needs the extra `mcp`: pip install 'beforehand[mcp]'"


def test_secrets_of_tools_are_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(tools={"mcp": {"files": {"command": "x", "env": {"KEY": "s3cret"}}}})
    shown = {entry.name: entry.value for entry in settings_with_sources(settings)}
    for name in ("mcp.web.headers.authorization", "mcp.web.url", "sql.dsn", "mcp.files.env.KEY"):
        assert shown[f"tools.{name}"] == MASK
    tools = build(settings).tools.tool_set
    assert "s3cret" not in repr(shown) + repr(settings.tools) + repr([vars(source) for source in tools._sources])


def test_what_a_server_or_a_database_needs_is_imported_only_where_there_is_one() -> None:
    script = "import sys, containers.application as a, containers.settings as s; a.build(s.load_settings('test')); "
    script += "print({'asyncpg', 'httpx2', 'jsonschema', 'mcp'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "set()\n"


# ------------------------------------------------------------------------------------------------ start and stop


class Source:
    """Notes when it is opened and closed; may refuse to open."""

    def __init__(self, log: list[str], refusal: Exception | None = None) -> None:
        self._log, self._refusal = log, refusal

    async def open(self) -> Sequence[Tool]:
        self._log.append("open tools")
        if self._refusal is not None:
            raise self._refusal

        @tool
        def late() -> None:
            """Known only now."""

        return (late,)

    async def close(self) -> None:
        self._log.append("close tools")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, here: Path) -> list[str]:
    """What the store of these tests does when."""
    from persistence.memory import MemoryPersistence

    noted: list[str] = []
    for name in ("open", "close"):
        real = getattr(MemoryPersistence, name)

        async def noting(self: MemoryPersistence, real: Any = real, name: str = name) -> None:
            noted.append(f"{name} store")
            await real(self)

        monkeypatch.setattr(MemoryPersistence, name, noting)
    return noted


def lifespan(source: Source, *, only_store: bool = False) -> Lifespan:
    built = build(load_settings("test"))
    built.tools.tool_set._sources = (source,)
    return Lifespan(built, only_store=only_store)


async def test_tools_are_opened_after_the_store_and_closed_before_it(log: list[str]) -> None:
    async with lifespan(Source(log)) as application:
        assert list(application.tools.tool_set.tools)[-1] == "late"
        assert application.tools.tool_set.specs[-1].name == "late"
    assert log == ["open store", "open tools", "close tools", "close store"]


async def test_a_source_that_cannot_be_opened_stops_the_start_with_everything_closed(log: list[str]) -> None:
    starting = lifespan(Source(log, ConfigurationError("tools.mcp.a: no")))
    with pytest.raises(ConfigurationError, match=r"^tools\.mcp\.a: no$"):
        await starting.start()
    assert log == ["open store", "open tools", "close tools", "close store"]


async def test_who_runs_no_agent_opens_no_tools(log: list[str]) -> None:
    async with lifespan(Source(log), only_store=True):
        pass
    assert "open tools" not in log


async def test_all_faults_of_sources_are_told_at_once() -> None:
    first, second = (Source([], ConfigurationError(f"tools.mcp.{name}: no")) for name in "ab")
    with pytest.raises(ConfigurationError) as error:
        await ToolSet([], [first, Source([]), second]).open()
    assert str(error.value) == "tools.mcp.a: no\ntools.mcp.b: no"


async def test_a_bug_in_a_source_is_no_fault_of_the_settings() -> None:
    with pytest.raises(ZeroDivisionError):
        await ToolSet([], [Source([], ConfigurationError("x")), Source([], ZeroDivisionError())]).open()


async def test_a_tool_that_comes_late_may_not_take_a_name_that_is_taken() -> None:
    @tool
    def late() -> None:
        """There already."""

    with pytest.raises(ConfigurationError, match="there are two tools named 'late'"):
        await ToolSet([late], [Source([])]).open()

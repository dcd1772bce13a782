"""`beforehand tools` asks the servers what they have; commands that run no agent leave them alone."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.integration.cli.command import Command
from tests.integration.tools.test_mcp import SDK


def test_tools_are_listed_with_effects_source_and_schema(tmp_path: Path) -> None:
    (tmp_path / "beforehand.toml").write_text(f'[base.tools.mcp.srv]\ncommand = "{sys.executable}"\nargs = ["{SDK}"]\n')
    settings = {"tools__extra__weather": "examples.weather:weather", "tools__enabled": "fetch_url,weather,mcp:srv"}
    beforehand = Command(tmp_path, **settings)
    listed = {told["name"]: told for told in beforehand("tools", "--json").records}
    assert [(told["source"], told["effects"]) for told in listed.values()][:5] == [
        ("builtin", "read_only"),
        ("extra", "read_only"),
        ("mcp:srv", "read_only"),
        ("mcp:srv", "idempotent"),
        ("mcp:srv", "side_effect"),
    ]
    assert listed["srv__add"]["schema"]["required"] == ["a", "b"]
    lines = beforehand("tools").out.splitlines()
    assert [line.split()[:3] for line in lines[2:6:2]] == [
        ["weather", "read_only", "extra"],
        ["srv__add", "read_only", "mcp:srv"],
    ]
    assert not (tmp_path / ".beforehand").exists()


def test_a_server_that_is_down_stops_agents_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "beforehand.toml").write_text('[base.tools.mcp.srv]\nurl = "http://127.0.0.1:9/mcp"\n')
    beforehand = Command(tmp_path)
    model = beforehand.script({"say": "Hello"})
    done = beforehand("run", "hi", "--session", "s", "--model", model)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("beforehand: tools.mcp.srv: the MCP server 'srv' cannot be used: ConnectError")
    assert len(done.err.splitlines()) == 1
    assert beforehand("run", "hi", "--session", "s", "--model", model, "--tools", "read_file").out == "Hello\n"
    assert beforehand("show", "s").code == 0

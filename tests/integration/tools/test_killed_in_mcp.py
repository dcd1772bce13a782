"""Our own process is killed inside a tool of an MCP server: the log tells the truth, and the server is gone, too."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.command import Command, outcomes, types
from tests.integration.tools.test_mcp import RAW, SDK


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> dict[str, object]:
    if request.param == "sqlite":
        return {}
    dsn = request.getfixturevalue("postgres_dsn")
    return {"persistence__kind": "postgres", "persistence__dsn": dsn}


def configure(directory: Path, *arguments: str) -> None:
    listed = ", ".join(f'"{argument}"' for argument in arguments)
    (directory / "beforehand.toml").write_text(
        f'[base.tools.mcp.srv]\ncommand = "{sys.executable}"\nargs = [{listed}]\ntimeout_s = 600\n'
    )


def events_of(command: Command, session: str) -> Any:
    return command("show", session, "--json").records[0]


def test_the_call_has_an_unknown_outcome_and_no_process_is_left(tmp_path: Path, store: dict[str, object]) -> None:
    """A real MCP server's tool takes effect; SIGKILL comes before its answer; recovery and the next turn follow."""
    beforehand = Command(tmp_path, write_behind_ms="off", **store)
    configure(tmp_path, SDK)
    entered = tmp_path / "fifo"
    os.mkfifo(entered)
    hang = {"call": "srv__write_and_hang", "arguments": {"path": str(entered)}, "id": "c1"}
    model = beforehand.script(hang, {"say": "Done"})
    with beforehand.start("run", "do it", "--session", "s", "--model", model) as running:
        server = os.pidfd_open(int(entered.read_text()))
        running.kill()
    try:
        assert select.select([server], [], [], 30)[0], "the server outlived the process that started it"
    finally:
        os.close(server)
    add = {"call": "srv__add", "arguments": {"a": 1, "b": 2}, "id": "c2"}
    went_on = [{"when": {"contains": "go on"}, "answer": add}, {"say": "It is 3"}]
    done = beforehand("resume", "s", "go on", "--take-over", "--model", beforehand.script(*went_on, name="next"))
    assert (done.code, done.out) == (0, "It is 3\n"), done.err
    shown = events_of(beforehand, "s")
    head = ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "chunk*"]
    called = ["assistant/message", "tool/call", "tool/result"]
    assert types(shown)[: len(head) + 5] == [*head, *called, "step/end", "turn/end{interrupted}"]
    assert outcomes(shown["events"]) == [("c1", "TOOL_OUTCOME_UNKNOWN"), ("c2", {"result": 3})]
    unknown = next(event["data"]["error"] for event in shown["events"] if event["type"] == "tool/result")
    assert "may or may not have taken effect" in unknown["message"]
    effects = [event["data"]["effects"] for event in shown["events"] if event["type"] == "tool/call"]
    assert effects == ["side_effect", "read_only"]


def test_a_server_that_heeds_neither_the_end_of_its_input_nor_sigterm_is_killed_with_us(tmp_path: Path) -> None:
    beforehand = Command(tmp_path, write_behind_ms="off")
    configure(tmp_path, RAW, "undying")
    told = tmp_path / "fifo"
    os.mkfifo(told)
    command = {"call": "run_command", "arguments": {"argv": ["sh", "-c", f"echo $PPID > {told}; exec sleep 600"]}}
    settings = {"tools__enabled": "run_command,mcp:srv"}
    with beforehand.start("run", "x", "--session", "s", "--model", beforehand.script(command), **settings) as running:
        told.read_text()
        pids = descendants(running.process.pid)
        watched = [os.pidfd_open(pid) for pid in pids if "raw_server.py" in Path(f"/proc/{pid}/cmdline").read_text()]
        assert len(watched) == 2  # it, and its supervisor
        running.kill()
    try:
        for each in watched:
            assert select.select([each], [], [], 30)[0], "a process outlived the one that started it"
    finally:
        for each in watched:
            os.close(each)


def descendants(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return [*found, *(below for child in found for below in descendants(child))]

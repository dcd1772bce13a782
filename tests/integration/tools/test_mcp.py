"""Real MCP servers, on stdio and over HTTP: what they do wrong is a result of the call, never the end of a turn."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.cancel import CancelSignal
from app.session.call_keys import idempotency_key
from app.session.errors import ConfigurationError
from app.tools.mcp import McpTools
from app.tools.mcp_connection import McpServer
from app.tools.service import ToolService
from app.tools.tool_set import ToolSet
from app.tools.types import ToolResult
from tests.unit.tools.calls import call, failure

HERE = Path(__file__).parent
SDK, RAW = str(HERE / "mcp_server.py"), str(HERE / "raw_server.py")
PATIENT_S, HASTY_S = 60.0, 0.5
LOST = "no result came back: "
TAKEN = "; the call may have taken effect"


def on_stdio(*arguments: str, **options: Any) -> McpServer:
    options = {"timeout_s": PATIENT_S, "connect_timeout_s": PATIENT_S} | options
    return McpServer("srv", (sys.executable, *arguments), **options)


def raw(way: str, **options: Any) -> McpServer:
    return on_stdio("-I", "-S", RAW, way, **options)


@asynccontextmanager
async def opened(server: McpServer) -> AsyncIterator[ToolService]:
    """A tool service with the tools of this server and no others."""
    tool_set = ToolSet([], [McpTools(server)])
    try:
        await tool_set.open()
        yield ToolService(tool_set)
    finally:
        await tool_set.close()


async def ask(service: ToolService, name: str, signal: CancelSignal | None = None, **arguments: Any) -> ToolResult:
    execution = call(f"srv__{name}", json.dumps(arguments), signal=signal or CancelSignal())
    return await service.execute(execution)


async def works(service: ToolService) -> bool:
    return await ask(service, "add", a=1, b=2) == ToolResult({"result": 3})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def listening(port: int, *more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The same server over HTTP, once it takes connections."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, SDK, str(port), *more), stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    assert process.stderr is not None
    try:
        async for line in process.stderr:
            if b"Uvicorn running" in line:
                break
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.fixture(params=["stdio", "http", "http-json"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[McpServer]:
    """The well-made server, reached in each way that there is."""
    if request.param == "stdio":
        yield on_stdio(SDK)
        return
    port = free_port()
    async with listening(port, *request.param.split("-")[1:]):
        yield McpServer("srv", url=f"http://127.0.0.1:{port}/mcp", timeout_s=PATIENT_S, connect_timeout_s=PATIENT_S)


TOLD = pytest.mark.parametrize("server", ["stdio", "http"], indirect=True)
"""A server of this package that answers in plain JSON does not notice that nobody waits for the answer any more."""


def changed(server: McpServer, **options: Any) -> McpServer:
    return McpServer(**{name: getattr(server, name) for name in McpServer.__slots__} | options)


# ------------------------------------------------------------------------------------------------ as it should be


async def test_tools_come_with_schema_description_and_effects_and_answer(server: McpServer, tmp_path: Path) -> None:
    async with opened(server) as service:
        tools = service.tool_set.tools
        assert {name: tool.effects for name, tool in tools.items() if tool.effects != "side_effect"} == {
            "srv__add": "read_only",
            "srv__write": "idempotent",
        }
        assert len(tools) == len(service.tool_set.specs) == 9
        add = tools["srv__add"]
        assert add.description == "Add two numbers."
        assert (add.input_schema["required"], add.input_schema["properties"]["a"]["type"]) == (["a", "b"], "integer")
        assert [service.is_parallel_safe(name, "{}") for name in ("srv__add", "srv__write")] == [True, False]
        assert await works(service)
        new = tmp_path / "new"
        assert await ask(service, "write", path=str(new), text="hello") == ToolResult("written")
        assert new.read_text() == "hello"
        image = {"type": "image", "mimeType": "image/png", "bytes": 100_000}
        assert await ask(service, "picture") == ToolResult([{"type": "text", "text": "a picture"}, image])


async def test_the_call_is_named_to_the_server(server: McpServer) -> None:
    async with opened(server) as service:
        assert await ask(service, "keys") == ToolResult(f"c1 {idempotency_key('', 'c1')}")


async def test_arguments_are_checked_before_anything_is_sent() -> None:
    async with opened(on_stdio(SDK)) as service:
        assert failure(await ask(service, "add", a="x")) == (
            "INVALID_ARGUMENTS",
            "the arguments do not fit: at \"/a\": 'x' is not of type 'integer'; at \"\": 'b' is a required property",
        )
        assert failure(await service.execute(call("srv__add", "[1]")))[0] == "INVALID_ARGUMENTS"
        assert failure(await service.execute(call("srv__write", r'{"path": "\ud800", "text": ""}'))) == (
            "INVALID_ARGUMENTS",
            "the arguments do not fit: they hold an unpaired surrogate, which the protocol cannot carry",
        )
        assert await works(service)


async def test_a_tool_that_fails_says_so_and_large_results_are_refused(server: McpServer) -> None:
    async with opened(server) as service:
        code, message = failure(await ask(service, "fail", path="/no/such/file"))
        assert (code, message) == ("TOOL_FAILED", "Error executing tool fail")
        assert failure(await ask(service, "big", size=5_000_000))[0] == "RESULT_TOO_LARGE"
        assert await works(service)


async def test_a_message_over_the_limit_is_not_read(server: McpServer) -> None:
    async with opened(changed(server, max_message_bytes=100_000)) as service:
        code, message = failure(await ask(service, "big", size=1_000_000))
        assert code in ("TOOL_OUTCOME_UNKNOWN", "MCP_ERROR")
        assert message.endswith(TAKEN)
        assert "100000" in message or "Connection closed" in message
        assert await works(service)


async def test_settings_choose_tools_and_say_better_what_they_do(server: McpServer) -> None:
    chosen = changed(server, tools=("write", "die.now"), effects={"write": "read_only"})
    async with opened(chosen) as service:
        names = list(service.tool_set.tools)
        assert names[0] == "srv__write"
        assert names[1].startswith("srv__die_now_")
        assert service.tool_set.tools["srv__write"].effects == "read_only"
    for options in ({"tools": ("rite",)}, {"effects": {"rite": "read_only"}}):
        with pytest.raises(ConfigurationError, match=r"tools\.mcp\.srv: it has no tools rite; it has add, write, "):
            async with opened(changed(server, **options)):
                pass


async def test_a_server_of_ours_gets_what_it_is_given_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    async with opened(on_stdio(SDK, environment={"GIVEN": "x"})) as service:
        result = await ask(service, "environment")
    names = set(result.value["result"])
    assert {"GIVEN", "PATH"} <= names
    assert "SOME_TOKEN" not in names


# ------------------------------------------------------------------------------------------------ what goes wrong


async def test_a_server_that_dies_in_a_call_is_started_again_for_the_next() -> None:
    async with opened(on_stdio(SDK)) as service:
        (die,) = (name for name in service.tool_set.tools if name.startswith("srv__die_now"))
        code, message = failure(await service.execute(call(die, '{"code": 3}')))
        assert code == "TOOL_OUTCOME_UNKNOWN"
        assert message == f"{LOST}Connection closed{TAKEN}"
        assert await works(service)


async def test_a_server_that_is_gone_and_comes_back_is_found_again() -> None:
    port = free_port()
    server = McpServer("srv", url=f"http://127.0.0.1:{port}/mcp", timeout_s=PATIENT_S, connect_timeout_s=PATIENT_S)
    async with listening(port) as process:
        tools = McpTools(server)
        service = ToolService(ToolSet(await tools.open()))
        assert await works(service)
        process.kill()
        await process.wait()
        assert failure(await ask(service, "add", a=1, b=2))[0] in ("TOOL_OUTCOME_UNKNOWN", "MCP_UNAVAILABLE")
        assert failure(await ask(service, "add", a=1, b=2))[0] == "MCP_UNAVAILABLE"
    async with listening(port):
        assert await works(service)
        await tools.close()


@TOLD
async def test_a_call_that_hangs_times_out_and_the_server_is_told(server: McpServer, tmp_path: Path) -> None:
    marks = tmp_path / "fifo"
    os.mkfifo(marks)
    async with opened(changed(server, timeout_s=HASTY_S)) as service:
        reading = asyncio.ensure_future(asyncio.to_thread(lambda: [marks.read_text(), marks.read_text()]))
        code, message = failure(await ask(service, "write_and_hang", path=str(marks)))
        assert (code, message) == ("TOOL_TIMEOUT", "tool call timed out after 0.5 s; it may have taken effect")
        assert (await reading)[1] == "told to stop"
        assert await works(service)


@TOLD
async def test_a_cancelled_turn_does_not_wait_for_the_server(server: McpServer, tmp_path: Path) -> None:
    marks, signal = tmp_path / "fifo", CancelSignal()
    os.mkfifo(marks)
    async with opened(server) as service:
        calling = asyncio.ensure_future(ask(service, "write_and_hang", signal, path=str(marks)))
        await asyncio.to_thread(marks.read_text)
        reading = asyncio.ensure_future(asyncio.to_thread(marks.read_text))
        signal.cancel()
        code, message = failure(await calling)
        assert (code, message) == ("ABORTED", "tool call aborted after it had started; it may have taken effect")
        assert await reading == "told to stop"
        assert await works(service)


@pytest.mark.parametrize(
    ("way", "code", "message"),
    [
        ("half-a-line", "TOOL_OUTCOME_UNKNOWN", f"{LOST}Connection closed{TAKEN}"),
        ("hundred-megabytes", "TOOL_OUTCOME_UNKNOWN", f"{LOST}it sent a message of more than 33554432 bytes{TAKEN}"),
        ("refusing", "MCP_ERROR", f"the server answered with an error: not for you, [redacted]{TAKEN}"),
        ("deaf", "TOOL_TIMEOUT", "tool call timed out after 0.5 s; it may have taken effect"),
        ("rubbish-result", "MCP_INVALID_RESULT", None),
    ],
)
async def test_a_server_without_manners_gives_an_error_and_can_be_called_again(
    way: str, code: str, message: str | None
) -> None:
    server = raw(way, environment={"KEY": "sesame-open"}, timeout_s=HASTY_S if way == "deaf" else PATIENT_S)
    if way == "deaf":
        server = changed(server, connect_timeout_s=2.0)
    async with opened(server) as service:
        for _ in range(2):
            found = failure(await ask(service, "call"))
            assert found == (code, message or found[1])


async def test_lines_that_are_no_messages_are_passed_over() -> None:
    async with opened(raw("garbage")) as service:
        for _ in range(2):
            assert await ask(service, "call") == ToolResult("ok")


async def test_tools_that_change_are_noticed_and_stay_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(raw("changing")) as service:
        before = service.tool_set.specs
        assert await ask(service, "call") == ToolResult("ok")
        assert await ask(service, "call") == ToolResult("ok")
        assert service.tool_set.specs == before
    assert "MCP server srv has other tools now; they are read at the next start" in caplog.messages


async def test_tools_with_bad_schemas_are_left_out_unless_they_are_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(raw("bad-schemas")) as service:
        assert list(service.tool_set.tools) == ["srv__tfar", "srv__tdeep"]
        code, message = failure(await ask(service, "tfar", a=1))
        assert code == "INVALID_ARGUMENTS"
        assert "http://127.0.0.1:9/schema.json" in message  # it is named, and nobody went there
    assert [message.split(" has a schema")[0] for message in caplog.messages] == [
        "tools.mcp.srv: its tool 't0'",
        "tools.mcp.srv: its tool 't1'",
    ]
    with pytest.raises(ConfigurationError, match=r"tools\.mcp\.srv: its tool 't0' has a schema that is none: "):
        async with opened(raw("bad-schemas", tools=("t0",))):
            pass


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (
            raw("complaining"),
            r"Connection closed; it ended with exit code 7; cannot find my configuration, \[redacted\]$",
        ),
        (raw("silent", connect_timeout_s=1.0), "TimeoutError: no answer within 1 s"),
        (raw("list-of-rubbish"), "it does not list its tools: "),
        (raw("endless-pages"), "its list of tools has more than 100 pages"),
        (McpServer("srv", ("/no/such/program",)), "it could not be started: No such file or directory"),
        (McpServer("srv", url="http://127.0.0.1:9/mcp"), "All connection attempts failed"),
    ],
    ids=["complaining", "silent", "list-of-rubbish", "endless-pages", "no-program", "nobody-listens"],
)
async def test_a_server_that_is_of_no_use_stops_the_start_unless_it_is_optional(
    server: McpServer, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = changed(server, environment={"KEY": "sesame-open"})
    with pytest.raises(ConfigurationError, match=rf"^tools\.mcp\.srv: .*{told}"):
        async with opened(server):
            pass
    async with opened(changed(server, optional=True)) as service:
        assert not service.tool_set.tools
    assert "it is optional, so its tools are missing" in caplog.text
    assert "sesame-open" not in caplog.text


# ------------------------------------------------------------------------------------------------ the end


@pytest.mark.parametrize("way", ["garbage", "undying"])
async def test_closing_ends_the_process_also_one_that_does_not_want_to(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = raw(way)
    tools = McpTools(server)
    assert len(await tools.open()) == 2
    watched = os.pidfd_open(supervisor_of(RAW))
    try:
        await tools.close()
        assert select.select([watched], [], [], 0)[0]
    finally:
        os.close(watched)


def supervisor_of(script: str) -> int:
    """The one child of this process that was told to run it."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    (found,) = (int(child) for child in children if script in Path(f"/proc/{child}/cmdline").read_text())
    return found

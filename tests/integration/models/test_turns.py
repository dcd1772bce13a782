"""Turns with a vendor's server: what each failure leaves in the log, and that a cancel hangs up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.models.asking import VENDORS, application, of, turn, until_said
from tests.support.vendors import (
    REQUEST_ID,
    Answer,
    Vendor,
    VendorServer,
    anthropic_error,
    bytewise,
    data,
    delta,
    error,
    openai_error,
    stream,
)


@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_turn_with_a_tool_is_what_the_log_says(
    vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calls = (("c1", "write_file", '{"path": "a.txt", "content": "é"}'), ("c2", "list_files", "{}"))
    async with (
        VendorServer(vendor, stream(vendor, "Writing.", *calls, reasoning="hm"), stream(vendor, "Done.")) as server,
        application(server) as built,
    ):
        agent = await built.agents.create()
        outcome = await turn(agent)
        message, last = (event.data for event in of(agent, "assistant/message"))
    assert (outcome.reason, outcome.durable) == ("completed", True)
    assert [block["type"] for block in message["content"]] == ["reasoning", "text", "tool_call", "tool_call"]
    assert last["content"] == [{"type": "text", "text": "Done."}]
    assert message["model"] == {"adapter": "local", "model": "m"}
    assert (tmp_path / "a.txt").read_text() == "é"
    assert [event.data["is_error"] for event in of(agent, "tool/result")] == [False, False]


# Each: the vendor, its answers, the code that the turn ends with, the failures that were tried again.
SLOW = openai_error("slow", "requests", "rate_limit_exceeded")
QUOTA = openai_error("You exceeded your current quota", "insufficient_quota")
BUSY = error(529, anthropic_error("Overloaded", "overloaded_error"))
TOO_LONG = error(400, anthropic_error("prompt is too long", "invalid_request_error"))
OK = stream("openai", "ok")
OUTCOMES: list[tuple[Vendor, Sequence[Answer], str | None, list[dict[str, Any]]]] = [
    (
        "openai",
        [error(429, SLOW, retry_after_ms="2"), OK],
        None,
        [{"message": "slow", "code": "RATE_LIMIT", "status": 429, "retry_after_ms": 2, "request_id": REQUEST_ID}],
    ),
    (
        "anthropic",
        [BUSY] * 3,
        "SERVER",
        [{"message": "Overloaded", "code": "SERVER", "status": 529, "request_id": REQUEST_ID}] * 2,
    ),
    ("openai", [error(429, SLOW, retry_after="3600")], "RATE_LIMIT", []),
    ("openai", [error(429, QUOTA)], "QUOTA", []),
    ("anthropic", [TOO_LONG], "CONTEXT_WINDOW_EXCEEDED", []),
    (
        "openai",
        [Answer([delta(content="Hel")]), OK],
        None,
        [{"message": "the model's stream ended before it was finished", "code": "STREAM_CLOSED"}],
    ),
    ("openai", [Answer([delta(content="Hel"), b"data: {\n\n"])], "INVALID_STREAM", []),
    (
        "openai",
        [Answer([data(openai_error("boom", "server_error"))]), OK],
        None,
        [{"message": "boom", "code": "SERVER", "request_id": REQUEST_ID}],
    ),
    (
        "openai",
        [stream("openai", ""), OK],
        None,
        [{"message": "the model answered with neither text nor a tool call", "code": "EMPTY_RESPONSE"}],
    ),
    ("openai", [stream("openai", "Hel", reason="content_filter")], "UNKNOWN", []),
]


@pytest.mark.parametrize(("vendor", "answers", "code", "retries"), OUTCOMES)
async def test_a_failure_is_in_the_log_as_it_was_and_tried_again_if_that_helps(
    vendor: Vendor, answers: Sequence[Answer], code: str | None, retries: list[dict[str, Any]]
) -> None:
    async with VendorServer(vendor, *answers) as server, application(server) as built:
        agent = await built.agents.create()
        await turn(agent)
        assert server.answers == []
    (end,) = of(agent, "turn/end")
    assert [event.data["failure"] for event in of(agent, "llm/retry")] == retries
    assert end.data.get("error", {}).get("code") == code
    assert end.data["reason"] == ("completed" if code is None else "error")


@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_cut_connection_and_silence_are_tried_again(vendor: Vendor) -> None:
    pieces = list(stream(vendor, "Hello you").pieces)
    broken = [Answer([*pieces[:4], "cut"]), Answer([*pieces[:4], "hang"])]
    server = VendorServer(vendor, *broken, stream(vendor, "ok"))
    async with server, application(server, timeout_s=0.3) as built:
        agent = await built.agents.create()
        outcome = await turn(agent)
    assert outcome.reason == "completed"
    assert [event.data["failure"]["code"] for event in of(agent, "llm/retry")] == ["TRANSPORT", "TIMEOUT"]


@pytest.mark.parametrize("place", ["in the stream", "before its first event"])
@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_cancel_hangs_up_at_once(vendor: Vendor, place: str) -> None:
    """CAN-34: the server sees the connection end, though it never sent another byte."""
    pieces = list(stream(vendor, "Hello you").pieces)[: 5 if place == "in the stream" else 0]
    async with VendorServer(vendor, Answer([*pieces, "hang"])) as server, application(server) as built:
        agent = await built.agents.create()
        message_id = agent.send("hi")
        if pieces:
            await until_said(agent)
        else:
            await server.asked.wait()
        agent.cancel()
        outcome = await asyncio.wait_for(agent.wait(message_id), 60)
        await asyncio.wait_for(server.hung_up.wait(), 60)
    assert outcome.reason == "aborted"
    said_by_then = [event.data["content"][0]["text"] for event in of(agent, "assistant/message")]
    assert said_by_then == (["Hello you"[: len(said_by_then[0])]] if pieces else [])


@pytest.mark.parametrize("vendor", VENDORS)
async def test_interrupted_and_injected_text_make_the_next_request_no_less_valid(vendor: Vendor) -> None:
    pieces = list(stream(vendor, "Hello you", reasoning="hm").pieces)
    answers = [
        Answer([*pieces[:-3], "hang"]),
        stream(vendor, "ok", ("c1#", "no such tool!", "not JSON")),
        stream(vendor, "!"),
    ]
    async with VendorServer(vendor, *answers) as server, application(server) as built:
        agent = await built.agents.create()
        message_id = agent.send("hi")
        await until_said(agent)
        agent.cancel()
        assert (await agent.wait(message_id)).reason == "aborted"
        agent.inject("by the way")
        agent.inject([{"type": "text", "text": " "}, {"type": "odd", "n": 1}])
        assert (await turn(agent, "go on \udc81")).reason == "completed"
        assert len(server.bodies) == 3


async def test_each_byte_alone_makes_the_same_log() -> None:
    logs = []
    for change in (lambda answer: answer, bytewise):
        answers = [change(stream("openai", "é😀", ("c1", "list_files", "{}"))), change(stream("openai", "ok"))]
        async with VendorServer("openai", *answers) as server, application(server) as built:
            agent = await built.agents.create("s")
            await turn(agent)
            logs.append([(event.type, event.data) for event in of(agent, "assistant/message", "tool/call")])
    assert logs[0] == logs[1]

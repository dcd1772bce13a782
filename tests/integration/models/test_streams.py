"""What a vendor streams over a real socket, as the answer that it comes to; whole, and broken in every way."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from app.llm.assembler import Answer
from app.llm.types import LlmRequest
from app.messages import (
    AssistantMessage,
    Failure,
    ReasoningBlock,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolMessage,
)
from tests.integration.models.asking import MODEL, VENDORS, adapter, ask, user
from tests.support.vendor_rules import sign
from tests.support.vendors import (
    DONE,
    REQUEST_ID,
    Piece,
    Vendor,
    VendorServer,
    anthropic_error,
    anthropic_stream,
    block,
    bytewise,
    data,
    delta,
    error,
    event,
    openai_error,
    stream,
)
from tests.support.vendors import Answer as Sent

TEXT = "One moment, é😀.\n\nNow:"
CALLS = (("c1", "add", '{"a": 1, "b": "é"}'), ("c2", "add", "{}"))
USAGE = {"prompt_tokens": 20, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 12}}
COUNTED = {"input_tokens": 20, "cache_read_input_tokens": 12, "output_tokens": 9}
CONTENT = (
    ReasoningBlock("Let me think."),
    TextBlock(TEXT),
    ToolCallBlock("c1", "add", '{"a": 1, "b": "é"}'),
    ToolCallBlock("c2", "add", "{}"),
)
THOUGHT = {"type": "thinking", "thinking": "Let me think.", "signature": sign("Let me think.")}
WHOLE = {
    "openai": Answer(CONTENT, "tool_calls", USAGE, {"reasoning": "reasoning_content"}),
    "anthropic": Answer(
        CONTENT,
        "tool_calls",
        COUNTED,
        {"thinking": [[0, THOUGHT], [0, {"type": "redacted_thinking", "data": "xyz"}]]},
    ),
}


def whole(vendor: Vendor) -> Sent:
    more: dict[str, Any] = {"usage": USAGE} if vendor == "openai" else {"redacted": "xyz"}
    return stream(vendor, TEXT, *CALLS, reasoning="Let me think.", **more)


async def answer_to(vendor: Vendor, *pieces: Piece, **endpoint: Any) -> Answer | Failure:
    async with VendorServer(vendor, Sent(pieces)) as server:
        return await ask(adapter(server, **endpoint))


@pytest.mark.parametrize("vendor", VENDORS)
async def test_reasoning_text_parallel_calls_and_usage_make_one_answer(vendor: Vendor) -> None:
    async with VendorServer(vendor, whole(vendor)) as server:
        assert await ask(adapter(server)) == WHOLE[vendor]


@pytest.mark.parametrize("vendor", VENDORS)
async def test_where_the_network_cuts_the_bytes_makes_no_difference(vendor: Vendor) -> None:
    async with VendorServer(vendor, bytewise(whole(vendor))) as server:
        assert await ask(adapter(server)) == WHOLE[vendor]


@pytest.mark.parametrize("vendor", VENDORS)
async def test_comments_pings_other_line_ends_and_unknown_events_make_no_difference(vendor: Vendor) -> None:
    noise = b": keep-alive\n\n"
    noise += event("ping") + event("brand_new", text="x") if vendor == "anthropic" else data({"choices": []})
    noise += b": processing\nretry: 10\n"  # and these belong to the event that follows
    events = [piece for piece in whole(vendor).pieces if isinstance(piece, bytes)]
    noisy: list[Piece] = [noise + piece.replace(b"\n", b"\r\n") for piece in events]
    assert await answer_to(vendor, *noisy) == WHOLE[vendor]


@pytest.mark.parametrize("vendor", VENDORS)
async def test_chunks_arrive_while_the_rest_is_still_to_come(vendor: Vendor) -> None:
    gate = asyncio.Event()
    pieces = list(stream(vendor, "Hello you").pieces)
    half = len(pieces) - 4
    async with VendorServer(vendor, Sent([*pieces[:half], gate, *pieces[half:]])) as server:
        reading = asyncio.ensure_future(anext(first_text(server)))
        assert await asyncio.wait_for(reading, 20) == "Hell"
        gate.set()


async def first_text(server: VendorServer) -> Any:
    source = adapter(server).stream(LlmRequest(MODEL, (user("hi"),)))
    try:
        async for chunk in source:
            if isinstance(chunk, TextDelta):
                yield chunk.text
    finally:
        await source.aclose()


# ------------------------------------------------------------------------------------------------ how it finishes


@pytest.mark.parametrize(
    ("vendor", "reason", "finish"),
    [
        ("openai", "stop", "stop"),
        ("openai", "length", "max_tokens"),
        ("openai", "tool_calls", "tool_calls"),
        ("openai", "function_call", "tool_calls"),
        ("anthropic", "end_turn", "stop"),
        ("anthropic", "stop_sequence", "stop"),
        ("anthropic", "max_tokens", "max_tokens"),
        ("anthropic", "model_context_window_exceeded", "max_tokens"),
        ("anthropic", "tool_use", "tool_calls"),
    ],
)
async def test_every_reason_to_finish_is_ours(vendor: Vendor, reason: str, finish: str) -> None:
    async with VendorServer(vendor, stream(vendor, "Hello", reason=reason)) as server:
        answer = await ask(adapter(server))
    assert isinstance(answer, Answer)
    assert (answer.content, answer.finish) == ((TextBlock("Hello"),), finish)


@pytest.mark.parametrize(
    ("vendor", "reason", "code", "message"),
    [
        ("openai", "content_filter", "UNKNOWN", "the vendor's content filter stopped the answer"),
        ("openai", "insufficient_system_resource", "SERVER", "the vendor ran out of resources for the answer"),
        ("openai", "abort", "ABORTED", "the model's side aborted its answer"),
        ("openai", "strange", "UNKNOWN", "the answer ended for an unknown reason: 'strange'"),
        ("anthropic", "refusal", "UNKNOWN", "the vendor's classifiers stopped the answer (stop_reason refusal)"),
        ("anthropic", "pause_turn", "UNKNOWN", "the answer ended for an unknown reason: 'pause_turn'"),
    ],
)
async def test_an_answer_that_was_stopped_is_no_answer(vendor: Vendor, reason: str, code: str, message: str) -> None:
    async with VendorServer(vendor, stream(vendor, "Hello", reason=reason)) as server:
        assert await ask(adapter(server)) == Failure(message, code)


async def test_a_refusal_is_what_the_model_says() -> None:
    answer = await answer_to("openai", delta(refusal="I can"), delta(refusal="not."), delta("stop"), DONE)
    assert answer == Answer((TextBlock("I cannot."),), "stop")


async def test_reasoning_in_the_field_of_other_servers_is_reasoning() -> None:
    answer = await answer_to("openai", delta(reasoning="hm"), delta(content="ok"), delta("stop"), DONE)
    assert answer == Answer((ReasoningBlock("hm"), TextBlock("ok")), "stop", None, {"reasoning": "reasoning"})


async def test_calls_that_all_have_the_index_0_or_none_are_told_apart_by_their_ids() -> None:
    """KEY-05: some servers number nothing, and send each call whole."""
    calls = [
        {"index": 0, "id": "a", "function": {"name": "add", "arguments": "{}"}},
        {"index": 0, "id": "b", "function": {"name": "add", "arguments": '{"x":'}},
        {"index": 0, "id": "b", "function": {"arguments": "1}"}, "extra_content": {"sig": 1}},
        {"id": "c", "function": {"name": "add", "arguments": "[]"}},
    ]
    events = [delta(tool_calls=[call]) for call in calls]
    answer = await answer_to("openai", *events, delta("tool_calls"), DONE)
    asked = tuple(ToolCallBlock(id, "add", text) for id, text in (("a", "{}"), ("b", '{"x":1}'), ("c", "[]")))
    assert answer == Answer(asked, "tool_calls", None, {"extra_content": [None, {"sig": 1}, None]})


async def test_a_stream_may_end_without_its_end_mark_once_the_reason_came() -> None:
    assert await answer_to("openai", delta(content="ok"), delta("stop")) == Answer((TextBlock("ok"),), "stop")


async def test_a_call_whose_input_comes_whole_is_a_call() -> None:
    start = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
    end = event("message_delta", delta={"stop_reason": "tool_use"})
    answer = await answer_to("anthropic", *block(0, start), end, event("message_stop"))
    assert answer == Answer((ToolCallBlock("c1", "add", '{"a": 1}'),), "tool_calls")


async def test_thinking_that_is_not_shown_is_kept_for_the_vendor_alone() -> None:
    hidden = {"type": "thinking", "thinking": "", "signature": sign("")}
    pieces = [*block(0, hidden), *block(1, {"type": "text", "text": "ok"})]
    end = event("message_delta", delta={"stop_reason": "end_turn"})
    answer = await answer_to("anthropic", *pieces, end, event("message_stop"))
    assert answer == Answer((TextBlock("ok"),), "stop", None, {"thinking": [[0, hidden]]})


async def test_nothing_is_waited_for_after_the_end() -> None:
    """A proxy may hold the connection open."""
    pieces = stream("anthropic", "ok").pieces
    answer = await asyncio.wait_for(answer_to("anthropic", *pieces, "hang"), 60)
    assert answer == Answer((TextBlock("ok"),), "stop", COUNTED)


async def test_thinking_between_other_blocks_remembers_its_place() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": sign("hm")}
    blank = {"type": "text", "text": "\n\n"}  # which is not sent back
    blocks = ({"type": "text", "text": "a"}, blank, thinking, {"type": "tool_use", "id": "c1", "name": "add"})
    pieces = [piece for place, start in enumerate(blocks) for piece in block(place, start)]
    end = event("message_delta", delta={"stop_reason": "tool_use"})
    answer = await answer_to("anthropic", *pieces, end, event("message_stop"))
    assert isinstance(answer, Answer)
    assert answer.replay_state == {"thinking": [[1, thinking]]}


async def test_of_several_answers_the_first_is_taken() -> None:
    other = data({"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]})
    assert await answer_to("openai", other, delta(content="ok"), other, delta("stop")) == Answer(
        (TextBlock("ok"),), "stop"
    )


# ------------------------------------------------------------------------------------------------ how it breaks


@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_stream_that_ends_anywhere_before_its_reason_is_no_answer(vendor: Vendor) -> None:
    """LLM-03: half an answer is never taken for a whole one, wherever the server stops."""
    pieces = [piece for piece in stream(vendor, "Hello you").pieces if isinstance(piece, bytes)]
    sent = b"".join(pieces[:-2])  # of both, the last two finish it
    cuts = [*range(0, len(sent), 97), len(sent)]
    async with VendorServer(vendor, *(Sent([sent[:cut]]) for cut in cuts)) as server:
        ends = [await ask(adapter(server)) for _ in cuts]
    assert {end.code for end in ends if isinstance(end, Failure)} == {"STREAM_CLOSED"}
    assert len([end for end in ends if isinstance(end, Failure)]) == len(cuts)


@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_connection_that_breaks_in_the_midst_is_a_failure_of_transport(vendor: Vendor) -> None:
    pieces = stream(vendor, "Hello you").pieces
    failure = await answer_to(vendor, *pieces[:3], "cut")
    assert isinstance(failure, Failure)
    assert (failure.code, failure.request_id) == ("TRANSPORT", REQUEST_ID)
    assert failure.message.startswith("the connection to http://127.0.0.1:")


@pytest.mark.parametrize("vendor", VENDORS)
async def test_silence_is_a_timeout(vendor: Vendor) -> None:
    failure = await answer_to(vendor, *stream(vendor, "Hello you").pieces[:3], "hang", timeout_s=0.3)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.request_id) == ("TIMEOUT", REQUEST_ID)
    assert failure.message.endswith("sent nothing within 0.3 s")


@pytest.mark.parametrize("vendor", VENDORS)
async def test_where_nobody_listens_it_is_a_failure_of_transport(vendor: Vendor) -> None:
    async with VendorServer(vendor) as server:
        gone = adapter(server)
    failure = await ask(gone)
    assert isinstance(failure, Failure)
    assert failure.code == "TRANSPORT"


BROKEN: list[tuple[str, Vendor, tuple[bytes, ...]]] = [
    ("no JSON", "openai", (b"data: {\n\n",)),
    ("no JSON", "anthropic", (b"event: message_start\ndata: {\n\n",)),
    ("no UTF-8", "openai", (b"data: \xff\xfe\n\n",)),
    ("no UTF-8", "anthropic", (b"event: x\ndata: \xff\n\n",)),
    ("no object", "openai", (data([1]),)),
    ("no object", "anthropic", (b"event: x\n" + data("x"),)),
    ("choices that are no list", "openai", (data({"choices": {"a": 1}}),)),
    ("a choice that is no object", "openai", (data({"choices": [3]}),)),
    ("a delta that is no object", "openai", (data({"choices": [{"delta": "x"}]}),)),
    ("text that is none", "openai", (delta(content=5),)),
    ("text that is none", "anthropic", (*block(0, {"type": "text"}, {"type": "text_delta", "text": 5}),)),
    ("arguments that are no text", "openai", (delta(tool_calls=[{"index": 0, "function": {"arguments": {"a": 1}}}]),)),
    ("an index that is none", "openai", (delta(tool_calls=[{"index": "x"}]),)),
    ("an index that is none", "anthropic", (event("content_block_start", index="x", content_block={}),)),
    ("a call that is no object", "openai", (delta(tool_calls=["x"]),)),
    ("a reason that is no text", "openai", (data({"choices": [{"delta": {}, "finish_reason": 7}]}),)),
    ("usage that is no object", "openai", (data({"usage": 3}),)),
    ("usage that is no object", "anthropic", (event("message_start", message={"usage": 3}),)),
    ("a delta of no block", "anthropic", (event("content_block_delta", index=4, delta={"type": "text_delta"}),)),
    ("a block of no kind that begins", "anthropic", (event("content_block_start", index=0, content_block=1),)),
]


@pytest.mark.parametrize(("what", "vendor", "pieces"), BROKEN, ids=[f"{bad[1]}: {bad[0]}" for bad in BROKEN])
async def test_an_event_that_is_none_is_an_invalid_stream(what: str, vendor: Vendor, pieces: tuple[bytes, ...]) -> None:
    """LLM-14: whatever a server sends, it is a failure of the model's, and no bug of ours."""
    failure = await answer_to(vendor, *pieces, *stream(vendor, "ok").pieces)
    assert isinstance(failure, Failure)
    assert failure.code == "INVALID_STREAM"


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/json"])
@pytest.mark.parametrize("vendor", VENDORS)
async def test_an_answer_that_is_no_stream_says_so(vendor: Vendor, kind: str) -> None:
    """A wrong address often leads to somebody's web page."""
    async with VendorServer(vendor, error(200, "<html>Welcome</html>", content_type=kind)) as server:
        failure = await ask(adapter(server))
    told = f"the server answered with {kind} where a stream of events was due; is the address right?"
    assert failure == Failure(told, "INVALID_STREAM")


async def test_an_error_inside_a_stream_ends_it() -> None:
    told = openai_error("The server is overloaded", "server_error")
    failure = await answer_to("openai", delta(content="Hel"), data(told))
    assert failure == Failure("The server is overloaded", "SERVER", None, None, REQUEST_ID)
    overloaded = b"event: error\n" + data(anthropic_error("Overloaded", "overloaded_error"))
    failure = await answer_to("anthropic", *anthropic_stream("Hello")[:3], overloaded)
    assert failure == Failure("Overloaded", "SERVER", None, None, REQUEST_ID)


async def test_a_refusal_keeps_status_request_id_and_the_wish_to_wait() -> None:
    told = openai_error("slow down", "requests", "rate_limit_exceeded")
    for wish, wish_ms in (("3", 3_000), ("Fri, 02 Jan 2026 03:05:05 GMT", 60_000)):
        async with VendorServer("openai", error(429, told, retry_after=wish, x_request_id="req_9")) as server:
            assert await ask(adapter(server)) == Failure("slow down", "RATE_LIMIT", 429, wish_ms, "req_9")
    async with VendorServer(
        "anthropic", error(529, anthropic_error("Overloaded", "overloaded_error"), request_id="req_9")
    ) as server:
        assert await ask(adapter(server)) == Failure("Overloaded", "SERVER", 529, None, "req_9")
        assert len(server.bodies) == 1  # the SDK would have tried again


# ------------------------------------------------------------------------------------------------ what goes back


@pytest.mark.parametrize("vendor", VENDORS)
async def test_an_answer_goes_back_as_the_vendor_wants_it(vendor: Vendor) -> None:
    """LLM-09: with its signatures to the model that made it, and without them to any other."""
    async with VendorServer(vendor, whole(vendor), stream(vendor, "3"), stream(vendor, "3")) as server:
        answer = await ask(adapter(server))
        assert isinstance(answer, Answer)
        message = AssistantMessage(answer.content, MODEL, json.dumps(answer.replay_state))
        results = (ToolMessage("c1", False, "1"), ToolMessage("c2", False, "2"))
        assert isinstance(await ask(adapter(server), user("hi"), message, *results), Answer)
        foreign = AssistantMessage(answer.content, type(MODEL)("a", "other"), message.replay_state)
        assert isinstance(await ask(adapter(server), user("hi"), foreign, *results), Answer)
        with_state, without = (body["messages"][1] for body in server.bodies[1:])
    if vendor == "openai":
        assert with_state.pop("reasoning_content") == "Let me think."
    else:
        assert with_state["content"][:2] == [THOUGHT, {"type": "redacted_thinking", "data": "xyz"}]
        del with_state["content"][:2]
    assert with_state == without


@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_request_that_the_vendor_refuses_is_a_failure_in_its_words(vendor: Vendor) -> None:
    """The strict server is strict: an unpaired call, which no log of ours gives, is refused."""
    unpaired = AssistantMessage((ToolCallBlock("c1", "add", "{}"),), MODEL)
    async with VendorServer(vendor, stream(vendor, "ok")) as server:
        failure = await ask(adapter(server), user("hi"), unpaired, user("more"))
    assert isinstance(failure, Failure)
    assert (failure.code, failure.status, failure.request_id) == ("UNKNOWN", 400, REQUEST_ID)
    assert "c1" in failure.message

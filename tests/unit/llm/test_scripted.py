"""The scripted model: which step answers, and what comes of its parts."""

import asyncio
import json
from typing import Any

import pytest

from app.llm.script import last_text
from app.llm.scripted import ScriptedAdapter, Step, call, cut, fail, gate, pause, reason, say
from app.llm.service import LlmService
from app.llm.types import LlmError
from app.messages import (
    AssistantMessage,
    BlockEnd,
    Failure,
    Finish,
    ModelRef,
    ReasoningDelta,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolMessage,
    Usage,
    UserMessage,
)
from tests.unit.llm.parts import ASK, Live, read, request

STOP, TOOL_CALLS = Finish("stop"), Finish("tool_calls")


def asked(*messages, name="script"):
    return request(name, messages=tuple(UserMessage((TextBlock(m),)) if isinstance(m, str) else m for m in messages))


def answered(text):
    return AssistantMessage((TextBlock(text),), ModelRef("script", "m"))


async def answers(adapter, *requests):
    """What each request got: the chunks, or the failure."""
    llm = LlmService([adapter], [], Live())
    got: list[Any] = []
    for one in requests:
        try:
            got.append(await read(llm, one))
        except LlmError as error:
            got.append(error.failure)
    return got


async def chunks_of(*parts):
    adapter = ScriptedAdapter([list(parts)])
    return (await answers(adapter, asked("hi")))[0]


# -- parts --------------------------------------------------------------------------------------


async def test_spoken_blocks_and_calls_take_an_index_each_and_get_their_finish():
    got = await chunks_of(reason("hm"), say("one two", chunks=3), call("add", {"a": 1}, id="c1"), call("now"))
    assert got == [
        ReasoningDelta(0, "hm"),
        TextDelta(1, "on"),
        TextDelta(1, "e "),
        TextDelta(1, "two"),
        ToolCallDelta(2, '{"a": 1}', "c1", "add"),
        ToolCallDelta(3, "{}", None, "now"),
        TOOL_CALLS,
    ]


async def test_a_single_part_is_an_answer():
    assert await answers(ScriptedAdapter([say("hello")]), asked("hi")) == [[TextDelta(0, "hello"), STOP]]


@pytest.mark.parametrize(
    ("text", "chunks", "pieces"),
    [("abc", 1, ["abc"]), ("abc", 2, ["a", "bc"]), ("abc", 9, ["a", "b", "c"]), ("", 2, [])],
)
async def test_a_text_is_cut_into_so_many_pieces_none_of_them_empty(text, chunks, pieces):
    assert await chunks_of(say(text, chunks=chunks)) == [*(TextDelta(0, piece) for piece in pieces), STOP]


async def test_arguments_can_be_raw_text_and_come_in_pieces():
    assert await chunks_of(call("add", "{oops", id="c1", chunks=2)) == [
        ToolCallDelta(0, "{o", "c1", "add"),
        ToolCallDelta(0, "ops"),
        TOOL_CALLS,
    ]
    assert await chunks_of(call("add", "")) == [ToolCallDelta(0, "", None, "add"), TOOL_CALLS]


async def test_raw_chunks_are_given_as_they_are():
    chunks = [TextDelta(4, "a"), BlockEnd(4), TextDelta(4, "b")]
    assert await chunks_of(*chunks) == chunks


async def test_spoken_blocks_come_after_raw_ones_and_a_given_finish_stands():
    finish = Finish("max_tokens", replay_state=1)
    assert await chunks_of(TextDelta(4, "a"), say("b"), Usage({"in": 1}), finish) == [
        TextDelta(4, "a"),
        TextDelta(5, "b"),
        Usage({"in": 1}),
        finish,
    ]


async def test_a_cut_ends_the_stream_without_a_finish():
    assert await chunks_of(say("hel"), cut(), say("lo")) == [TextDelta(0, "hel")]


async def test_a_failure_first_comes_before_any_chunk_and_later_breaks_the_stream():
    adapter = ScriptedAdapter([fail("RATE_LIMIT", "slow down", retry_after_ms=5), [say("hel"), fail("TRANSPORT")]])
    with pytest.raises(LlmError) as refused:
        await anext(adapter.stream(asked("hi")))
    assert refused.value.failure == Failure("slow down", "RATE_LIMIT", retry_after_ms=5)
    stream = adapter.stream(asked("hi"))
    assert await anext(stream) == TextDelta(0, "hel")
    with pytest.raises(LlmError) as broken:
        await anext(stream)
    assert broken.value.failure == Failure("scripted failure TRANSPORT", "TRANSPORT")


async def test_any_exception_can_be_raised_as_it_is():
    error = OSError("reset")
    with pytest.raises(OSError, match="reset") as raised:
        await anext(ScriptedAdapter([fail(error)]).stream(asked("hi")))
    assert raised.value is error


# -- waiting ------------------------------------------------------------------------------------


async def test_pauses_are_waited_for_between_the_chunks():
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    adapter = ScriptedAdapter([[pause(3), say("abc", chunks=3, every_s=0.5)]], sleep=sleep)
    assert len((await answers(adapter, asked("hi")))[0]) == 4
    assert waited == [3, 0.5, 0.5]


async def test_a_gate_holds_the_opening_or_the_next_chunk_back():
    opening, middle = asyncio.Event(), asyncio.Event()
    reached = asyncio.Event()

    async def pass_middle():
        reached.set()
        await middle.wait()

    adapter = ScriptedAdapter([Step([say("a"), gate(pass_middle), say("b")], opening=opening)])
    stream = adapter.stream(asked("hi"))
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert (len(adapter.requests), first.done()) == (1, False)
    opening.set()
    assert await first == TextDelta(0, "a")
    following = asyncio.ensure_future(anext(stream))
    await reached.wait()
    assert not following.done()
    middle.set()
    assert await following == TextDelta(1, "b")
    await stream.aclose()


async def test_a_stream_that_pauses_can_be_left_at_once():
    adapter = ScriptedAdapter([[say("a"), pause(3600), say("b")]])
    seen = asyncio.Event()

    async def consume():
        async with LlmService([adapter], [], Live()).stream(asked("hi")) as stream:
            async for _ in stream:
                seen.set()

    reading = asyncio.create_task(consume())
    await seen.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


# -- which step answers -------------------------------------------------------------------------


async def test_steps_answer_in_their_order_and_then_the_script_is_exhausted():
    adapter = ScriptedAdapter([say("one"), say("two")])
    message = (
        "the script of 'script' is exhausted: 0 of its 2 steps are left, none for a request with 0 answers and "
        "'c' as the last message"
    )
    assert await answers(adapter, asked("a"), asked("b"), asked("c")) == [
        [TextDelta(0, "one"), STOP],
        [TextDelta(0, "two"), STOP],
        Failure(message),
    ]
    assert adapter.requests == [asked("a"), asked("b"), asked("c")]
    assert repr(adapter) == "<ScriptedAdapter script: 3 requests, 2 of 2 steps used>"


async def test_a_script_goes_on_in_a_new_process_by_what_the_request_shows():
    steps = [
        Step(call("pay", id="c1"), assistant_messages=0),
        Step(say("It was paid."), contains="go on", assistant_messages=1),
        Step(say("Goodbye."), assistant_messages=2),
    ]
    called = AssistantMessage((ToolCallBlock("c1", "pay", "{}"),), ModelRef("script", "m"))
    history = (*ASK, called, ToolMessage("c1", True, "Error: unknown"))
    before, after = ScriptedAdapter(steps), ScriptedAdapter(steps)
    assert await answers(before, asked("hi")) == [[ToolCallDelta(0, "{}", "c1", "pay"), TOOL_CALLS]]
    assert await answers(after, asked(*history, "please go on"), asked(*history, answered("paid"), "bye")) == [
        [TextDelta(0, "It was paid."), STOP],
        [TextDelta(0, "Goodbye."), STOP],
    ]


async def test_the_last_message_may_be_a_result():
    adapter = ScriptedAdapter([Step(say("I see."), contains="forty-two")])
    called = AssistantMessage((ToolCallBlock("c1", "ask", "{}"),), ModelRef("script", "m"))
    assert await answers(adapter, asked("hi", called, ToolMessage("c1", False, "it is forty-two"))) == [
        [TextDelta(0, "I see."), STOP]
    ]


async def test_a_step_with_repeat_is_never_used_up_and_one_can_answer_by_what_was_asked():
    echo = Step(lambda request: say(last_text(request.messages)), repeat=True)
    adapter = ScriptedAdapter([Step(say("once"), contains="b"), echo])
    assert await answers(adapter, asked("a"), asked("b"), asked("b")) == [
        [TextDelta(0, text), STOP] for text in ("a", "once", "b")
    ]


async def test_a_request_that_a_vendor_would_refuse_is_refused_and_uses_no_step():
    adapter = ScriptedAdapter([say("one")], name="strict")
    bad = asked("hi", ToolMessage("c1", False, ""), name="strict")
    good = asked("hi", name="strict")
    refusal, answer = await answers(adapter, bad, good)
    assert (refusal.code, refusal.status) == ("UNKNOWN", 400)
    assert answer == [TextDelta(0, "one"), STOP]
    assert await answers(ScriptedAdapter([say("one")], name="strict", strict=False), bad) == [answer]


# -- files --------------------------------------------------------------------------------------


async def test_a_script_is_read_from_a_file(tmp_path):
    script = {
        "steps": [
            {"say": "Hello", "chunks": 2},
            [{"reason": "hm"}, {"pause": 0}, {"call": "add", "arguments": {"a": 1}, "id": "c1"}],
            {"when": {"contains": "go on", "assistant_messages": 0}, "answer": [{"say": "on"}, {"cut": True}]},
            {
                "answer": {
                    "fail": "RATE_LIMIT",
                    "message": "slow",
                    "status": 429,
                    "retry_after_ms": 9,
                    "request_id": "r",
                }
            },
            {"answer": {"chunk": {"kind": "finish", "reason": "max_tokens"}}, "repeat": True},
        ]
    }
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    adapter = ScriptedAdapter.from_file(path, name="demo")
    requests = [asked(text, name="demo") for text in ("a", "b", "go on", "c", "d", "e")]
    assert await answers(adapter, *requests) == [
        [TextDelta(0, "He"), TextDelta(0, "llo"), STOP],
        [ReasoningDelta(0, "hm"), ToolCallDelta(1, '{"a": 1}', "c1", "add"), TOOL_CALLS],
        [TextDelta(0, "on")],
        Failure("slow", "RATE_LIMIT", 429, 9, "r"),
        [Finish("max_tokens")],
        [Finish("max_tokens")],
    ]

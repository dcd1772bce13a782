"""From chunks to one answer, or to the reason why there is none."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.llm.assembler import Answer, Assembler
from app.llm.types import LlmError
from app.messages import (
    BlockEnd,
    Failure,
    Finish,
    ReasoningBlock,
    ReasoningDelta,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    Usage,
)

STOP = Finish("stop")


def assembled(*chunks):
    assembler = Assembler()
    for chunk in chunks:
        assembler.add(chunk)
    return assembler


def verdict(*chunks, used=(), turn=1, step=1):
    return assembled(*chunks).verdict(used, turn, step)


def call(index, id=None, name="add", arguments="{}"):
    return ToolCallDelta(index, arguments, id, name)


# -- blocks -------------------------------------------------------------------------------------


def test_interleaved_deltas_become_blocks_in_order_of_index():
    """LLM-01"""
    answer = verdict(
        call(7, "c1", arguments='{"a"'),
        TextDelta(2, "on"),
        ReasoningDelta(0, "h"),
        ToolCallDelta(7, ": 1}"),
        TextDelta(2, "e"),
        ReasoningDelta(0, "m"),
        STOP,
    )
    assert answer == Answer((ReasoningBlock("hm"), TextBlock("one"), ToolCallBlock("c1", "add", '{"a": 1}')), "stop")


def test_a_delta_after_the_end_of_its_block_is_ignored_whatever_its_kind():
    answer = verdict(TextDelta(0, "a"), BlockEnd(0), TextDelta(0, "b"), call(0, "c1"), TextDelta(1, "c"), STOP)
    assert answer == Answer((TextBlock("a"), TextBlock("c")), "stop")


def test_the_end_of_a_block_that_was_never_opened_means_nothing():
    assert verdict(BlockEnd(0), TextDelta(0, "a"), STOP) == Answer((TextBlock("a"),), "stop")


@pytest.mark.parametrize("other", [ReasoningDelta(0, "x"), call(0)])
def test_a_delta_of_another_kind_at_an_open_index_is_an_invalid_stream(other):
    """LLM-14"""
    with pytest.raises(LlmError) as raised:
        verdict(TextDelta(0, "a"), other, STOP)
    kind = {"reasoning_delta": "reasoning", "tool_call_delta": "tool_call"}[other.kind]
    message = f"block 0 of the stream is text, and a piece of {kind} came for it"
    assert raised.value.failure == Failure(message, "INVALID_STREAM")


def test_empty_text_and_reasoning_are_left_out():
    answer = verdict(TextDelta(0, ""), ReasoningDelta(1, ""), TextDelta(2, " "), STOP)
    assert answer == Answer((TextBlock(" "),), "stop")


def test_id_and_name_of_a_call_are_the_first_that_are_not_empty():
    answer = verdict(call(0, "", ""), call(0, "c1", "add"), call(0, "c2", "sub"), ToolCallDelta(0, "", "", ""), STOP)
    assert answer.content == (ToolCallBlock("c1", "add", "{}{}{}"),)


def test_usage_counts_as_it_came_last_and_replay_state_is_handed_on():
    assembler = assembled(TextDelta(0, "a"), Usage({"in": 1}), Usage({"in": 2}), Finish("stop", replay_state=[1]))
    assert assembler.verdict((), 1, 1) == Answer((TextBlock("a"),), "stop", {"in": 2}, [1])
    assert (assembler.usage, assembler.finished) == ({"in": 2}, Finish("stop", replay_state=[1]))


def test_a_character_that_came_in_two_halves_is_that_character():
    halves = "\ud83d", "\ude00"
    answer = verdict(
        *(TextDelta(0, half) for half in halves),
        *(ReasoningDelta(1, half) for half in halves),
        *(ToolCallDelta(2, half, "\ud83d\ude00", "\ud83d\ude00") for half in halves),
        TextDelta(3, "\ude00\ud83d"),
        STOP,
    )
    face = "\U0001f600"
    assert answer.content == (
        TextBlock(face),
        ReasoningBlock(face),
        ToolCallBlock(face, face, face),
        TextBlock("\ude00\ud83d"),
    )


@given(st.text(st.characters(exclude_categories=[])), st.lists(st.integers(0, 40)))
def test_how_a_text_was_cut_makes_no_difference(text, cuts):
    units = text.encode("utf-16-le", "surrogatepass")
    bounds = [0, *sorted(2 * cut for cut in cuts if 2 * cut < len(units)), len(units)]
    pieces = [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in pairwise(bounds)]
    answer = verdict(TextDelta(0, "-"), *(TextDelta(0, piece) for piece in pieces), STOP)
    assert answer.content[0].text == f"-{units.decode('utf-16-le', 'surrogatepass')}"


# -- call ids -----------------------------------------------------------------------------------


def ids(*given, used=()):
    chunks = [call(index, id) for index, id in enumerate(given)]
    return [block.id for block in verdict(*chunks, STOP, used=used, turn=2, step=3).calls]


@pytest.mark.parametrize(
    ("given", "used", "expected"),
    [
        (["c1", "c2"], {"c3"}, ["c1", "c2"]),
        ([None, ""], (), ["call#2.3.0", "call#2.3.1"]),
        (["c1"], {"c1"}, ["c1#2.3.0"]),
        (["c1", "c1"], (), ["c1", "c1#2.3.1"]),
        (["c1"], {"c1", "c1#2.3.0"}, ["c1#2.3.0'"]),
        (["c1"], {"c1", "c1#2.3.0", "c1#2.3.0'"}, ["c1#2.3.0''"]),
        ([None, "call#2.3.0"], (), ["call#2.3.0", "call#2.3.0#2.3.1"]),
        (["\ud83d\ude00"], {"\U0001f600"}, ["\U0001f600#2.3.0"]),
    ],
)
def test_call_ids_are_made_unique_by_the_rule(given, used, expected):
    """LLM-04"""
    assert ids(*given, used=used) == expected
    assert ids(*given, used=used) == expected


@given(
    st.lists(st.sampled_from(["", "a", "a#2.3.1", "call#2.3.0"]), min_size=1),
    st.sets(st.sampled_from(["a", "a#2.3.1", "a#2.3.1'"])),
)
def test_call_ids_are_unique_in_their_session_whatever_the_model_gives(given, used):
    made = ids(*given, used=used)
    assert len({*made, *used}) == len(made) + len(used)


# -- verdict ------------------------------------------------------------------------------------

TEXT, CALL = TextDelta(0, "a"), call(1, "c1")


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
@pytest.mark.parametrize(
    ("chunks", "content"),
    [
        ([TEXT], (TextBlock("a"),)),
        ([CALL], (ToolCallBlock("c1", "add", "{}"),)),
        ([TEXT, CALL], (TextBlock("a"), ToolCallBlock("c1", "add", "{}"))),
    ],
)
def test_the_blocks_decide_whether_tools_run_and_not_the_reason(chunks, reason, content):
    answer = verdict(*chunks, Finish(reason))
    assert answer == Answer(content, reason)
    assert answer.calls == tuple(block for block in content if isinstance(block, ToolCallBlock))


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
@pytest.mark.parametrize("chunks", [[], [ReasoningDelta(0, "hm")], [TextDelta(0, "")]])
def test_an_answer_with_neither_text_nor_call_is_a_failed_request(chunks, reason):
    failure = Failure("the model answered with neither text nor a tool call", "EMPTY_RESPONSE")
    assert verdict(*chunks, Finish(reason)) == failure


@pytest.mark.parametrize(
    ("chunks", "content"),
    [
        ([], ()),
        ([CALL], ()),
        ([ReasoningDelta(0, "hm")], (ReasoningBlock("hm"),)),
        ([TEXT, CALL], (TextBlock("a"),)),
    ],
)
def test_an_answer_cut_by_its_length_loses_its_calls_and_may_be_empty(chunks, content):
    assert verdict(*chunks, Finish("max_tokens")) == Answer(content, "max_tokens")


@pytest.mark.parametrize(
    ("finish", "failure"),
    [
        (Finish("error", Failure("busy", "SERVER", status=503)), Failure("busy", "SERVER", status=503)),
        (Finish("error", Failure("tea", "TEAPOT", status=418)), Failure("tea", "UNKNOWN", status=418)),
        (Finish("error"), Failure("the model reported an error and did not say which")),
        (Finish("aborted"), Failure("the model's side aborted its answer", "ABORTED")),
        (Finish("aborted", Failure("policy", "SERVER")), Failure("policy", "ABORTED")),
        (None, Failure("the model's stream ended before it was finished", "STREAM_CLOSED")),
    ],
)
@pytest.mark.parametrize("chunks", [[], [TEXT, CALL]])
def test_a_failed_stream_is_no_answer_whatever_came_before(chunks, finish, failure):
    assert verdict(*chunks, *([finish] if finish else [])) == failure


@pytest.mark.parametrize(
    ("chunks", "content"),
    [
        ([], None),
        ([ReasoningDelta(0, "hm")], None),
        ([TextDelta(0, "")], None),
        ([CALL], None),
        ([ReasoningDelta(0, "hm"), TextDelta(1, "a"), call(2)], (ReasoningBlock("hm"), TextBlock("a"))),
    ],
)
def test_a_cancelled_stream_leaves_its_text_and_reasoning_if_any_text_was_visible(chunks, content):
    assert assembled(*chunks).interrupted() == content

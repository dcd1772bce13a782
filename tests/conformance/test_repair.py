"""The recovery function: what closes a turn that was cut short, from the log alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.llm.scripted import call, say
from app.messages import AssistantMessage, ModelRef, TextBlock, ToolCallBlock, ToolMessage, UserMessage
from app.session import events as ev
from app.session.drain import DrainLimits
from app.session.history import derive_messages
from app.session.record import SessionEvent
from app.session.recovery import close_interrupted_turn
from app.session.values import encode
from app.tools.schema import tool
from tests.support.house import Clock, House
from tests.support.recording import MARK, NOTE, START_MS, live, record
from tests.support.watching import at, data_of

ROOT = Path(__file__).resolve().parents[2]
MODEL = {"adapter": "script", "model": "test"}
NOT_STARTED = {
    "code": "TOOL_NOT_STARTED",
    "message": "tool call was never started; call the tool again if it is still needed",
}
UNKNOWN = {
    "code": "TOOL_OUTCOME_UNKNOWN",
    "message": "tool call was started, but its result was not recorded: it may or may not have taken effect. "
    "Verify the state, or ask the user, before calling it again",
}


def accepted(id: str, placement: ev.Placement = "next_turn") -> ev.InboxAccepted:
    return ev.InboxAccepted({"id": id, "content": f"this is {id}"}, placement)


def taken(id: str, turn: int = 1, placement: ev.Placement = "next_turn") -> ev.UserMessage:
    return ev.UserMessage(turn, accepted(id).message, placement)


def asking(*ids: str, turn: int = 1, step: int = 1, chunks: list[list[int]] | None = None) -> ev.AssistantMessage:
    content = [{"type": "tool_call", "id": id, "name": "act", "arguments": "{}"} for id in ids]
    return ev.AssistantMessage(turn, step, content, chunks or [], MODEL, "tool_calls")


def started(id: str, turn: int = 1, step: int = 1) -> ev.ToolCall:
    return ev.ToolCall(turn, step, id, "act", "{}", "side_effect")


def done(id: str, seq: int, value: Any = "done", turn: int = 1, step: int = 1) -> ev.ToolResult:
    return ev.ToolResult(turn, step, id, seq, False, value=value)


def failed(id: str, seq: int | None, error: ev.JsonObject, turn: int = 1, step: int = 1) -> ev.ToolResult:
    return ev.ToolResult(turn, step, id, seq, True, error=error)


OPENED = (accepted("m1"), ev.TurnStart(1, ["m1"]), taken("m1"))
HEADER = ev.RequestHeader(1, 1, "initial", MODEL, [])
ENDS = (ev.StepEnd(1, 1), ev.TurnEnd(1, "interrupted"))


def check_closers(log: tuple[ev.EventData, ...], *closers: ev.EventData) -> None:
    """Fails unless these close the log: numbered on, with the time of its last event alone, and legal."""
    times = [START_MS + 1000 * n for n in range(len(log))]
    events = record(log, time=times.__getitem__)
    expected = record((*log, *closers), time=lambda seq: times[min(seq, len(log) - 1)])[len(log) :]
    assert close_interrupted_turn(events) == expected
    live([*log, *closers])


# -- nothing to close ----------------------------------------------------------------------------


def test_a_log_without_a_turn_needs_no_closers():
    """RPR-01: an empty one, and one of inbox events only."""
    assert close_interrupted_turn([]) == ()
    check_closers(
        (accepted("m1"), accepted("m2", "context"), ev.InboxDiscarded(["m1"], "user"), ev.Extension(NOTE, {}))
    )


COMPLETE = (*OPENED, ev.StepStart(1, 1), asking(), ev.StepEnd(1, 1), ev.TurnEnd(1, "completed"))


def test_a_closed_turn_needs_no_closers():
    """RPR-02: at its end, and with inbox events after it."""
    check_closers(COMPLETE)
    check_closers((*COMPLETE, accepted("m2"), accepted("m3", "context"), ev.InboxDiscarded(["m2"], "user")))


# -- one state after another ---------------------------------------------------------------------


def test_a_turn_that_took_its_message_is_ended():
    """RPR-03: one `turn/end`, directly after the `user/message` and with its time."""
    events = record(OPENED, time=lambda seq: 5000 - seq)
    assert close_interrupted_turn(events) == (SessionEvent(3, 4998, "turn/end", '{"turn":1,"reason":"interrupted"}'),)


def test_an_open_step_is_ended_before_its_turn():
    """RPR-04: both with the time of the last event; so also after a header, chunks, and a message without calls."""
    events = record((*OPENED, ev.StepStart(1, 1)), time=lambda seq: 5000 - seq)
    assert close_interrupted_turn(events) == (
        SessionEvent(4, 4997, "step/end", '{"turn":1,"step":1}'),
        SessionEvent(5, 4997, "turn/end", '{"turn":1,"reason":"interrupted"}'),
    )
    chunk = ev.AssistantChunk(1, 1, {"kind": "text_delta", "index": 0, "text": "half an ans"})
    check_closers((*OPENED, ev.StepStart(1, 1), HEADER), *ENDS)
    check_closers((*OPENED, ev.StepStart(1, 1), HEADER, chunk, chunk), *ENDS)
    check_closers((*OPENED, ev.StepStart(1, 1), HEADER, chunk, asking(chunks=[[5, 5]])), *ENDS)
    check_closers((*OPENED, ev.StepStart(1, 1), ev.StepEnd(1, 1)), ev.TurnEnd(1, "interrupted"))


ASKED = (*OPENED, ev.StepStart(1, 1), asking("a", "b"))


def test_calls_that_were_never_recorded_were_not_started():
    """RPR-05: one result each, in block order, without a seq."""
    check_closers(ASKED, failed("a", None, NOT_STARTED), failed("b", None, NOT_STARTED), *ENDS)


def test_a_recorded_call_without_a_result_has_an_unknown_outcome():
    """RPR-06: with the seq of its call; the one after it was not started."""
    closers = (failed("a", 5, UNKNOWN), failed("b", None, NOT_STARTED), *ENDS)
    check_closers((*ASKED, started("a")), *closers)
    late = (ev.Extension(MARK, {}), accepted("m2", "next_step"))
    check_closers((*ASKED, started("a"), *late), *closers)


def test_a_call_that_has_its_result_gets_no_other():
    """RPR-07: only the one after it is closed."""
    check_closers((*ASKED, started("a"), done("a", 5)), failed("b", None, NOT_STARTED), *ENDS)
    check_closers((*ASKED, started("a"), done("a", 5), started("b")), failed("b", 7, UNKNOWN), *ENDS)
    check_closers((*ASKED, started("a"), done("a", 5), started("b"), done("b", 7)), *ENDS)


def test_parallel_calls_are_closed_in_block_order():
    """RPR-08: two were recorded, none was answered, one was never recorded."""
    asked = (*OPENED, ev.StepStart(1, 1), asking("a", "b", "c"))
    check_closers(
        (*asked, started("a"), started("b")),
        failed("a", 5, UNKNOWN),
        failed("b", 6, UNKNOWN),
        failed("c", None, NOT_STARTED),
        *ENDS,
    )


@pytest.mark.parametrize("took", [0, 1, 2])
def test_a_turn_whose_messages_are_missing_gives_them_back(took: int):
    """RPR-09: those that it did not take are pending again, in order, and the next turn may take them."""
    announced = (
        accepted("c1", "context"),
        accepted("c2", "context"),
        accepted("m1"),
        ev.TurnStart(1, ["c1", "c2", "m1"]),
    )
    log = (*announced, *(taken(id, placement="context") for id in ("c1", "c2")[:took]))
    check_closers(log, ev.TurnEnd(1, "interrupted"))
    session = live((*log, ev.TurnEnd(1, "interrupted")))
    left = ["c1", "c2", "m1"][took:]
    assert list(session.state.pending) == left
    session.append(ev.TurnStart(2, left), taken(left[0], 2, session.state.pending[left[0]].placement))


def test_what_earlier_turns_left_behind_is_not_closed_again():
    """RPR-10: turns that ended in every way, with results of every kind; then only the open turn gets closers."""
    codes = [
        *("TOOL_NOT_STARTED", "TOOL_OUTCOME_UNKNOWN", "ABORTED", "ABORTED_BEFORE_DISPATCH", "TOOL_TIMEOUT"),
        *("CHECKPOINT_FAILED", "DENIED", "NO_STOCK"),
    ]
    ends = [
        ev.TurnEnd(1, "completed"),
        ev.TurnEnd(2, "max_tokens"),
        ev.TurnEnd(3, "aborted", cause="user"),
        ev.TurnEnd(4, "error", error={"message": "busy", "code": "RATE_LIMIT", "step": 2}),
        ev.TurnEnd(5, "interrupted"),
    ]
    log: list[ev.EventData] = []
    for end in ends:
        turn = end.turn
        log += [accepted(f"m{turn}"), ev.TurnStart(turn, [f"m{turn}"]), taken(f"m{turn}", turn), ev.StepStart(turn, 1)]
        ids = [f"{turn}.{n}" for n in range(len(codes) + 2)]
        log.append(asking(*ids, turn=turn))
        for n, id in enumerate(ids[:-1]):
            log.append(started(id, turn))
            error = {"code": codes[n], "message": "no"} if n < len(codes) else None
            seq = len(log) - 1
            log.append(done(id, seq, turn=turn) if error is None else failed(id, seq, error, turn))
        log += [failed(ids[-1], None, NOT_STARTED, turn), ev.StepEnd(turn, 1)]
        log += [
            ev.StepStart(turn, 2),
            ev.StepEnd(turn, 2),
            ev.LlmRetry(turn, 2, 1, 5, {"message": "busy", "code": "SERVER"}),
        ]
        log.append(end)
        check_closers(tuple(log))
    log += [accepted("m6"), ev.TurnStart(6, ["m6"]), taken("m6", 6)]
    check_closers(tuple(log), ev.TurnEnd(6, "interrupted"))


# -- what does not matter, and what stays --------------------------------------------------------

INTERRUPTED = (*ASKED, started("a"))
CLOSERS = (failed("a", 5, UNKNOWN), failed("b", None, NOT_STARTED), *ENDS)


@pytest.mark.parametrize("now_ms", [0, 4_000_000_000_000])
async def test_the_clock_of_whoever_resumes_does_not_matter(now_ms: int):
    """RPR-13: far behind or far ahead, the closers that are stored have the time of the last event."""
    house = House()
    async with house.opened():
        session = await house.sessions.create("s")
        session.append(*INTERRUPTED)
        await house.sessions.flush(session)
        other = House(persistence=house.persistence, clock=Clock(now_ms))
        resumed = await other.sessions.resume("s", force=True)
        expected = record((*INTERRUPTED, *CLOSERS), time=lambda seq: Clock().now_ms)
        assert resumed.closers == expected[len(INTERRUPTED) :]
        assert resumed.events == (await house.persistence.read("s")).events == expected


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_makes_the_same_closers(hash_seed: str):
    """RPR-13: byte for byte."""
    program = (
        "import json, sys\n"
        "from app.session.record import SessionEvent\n"
        "from app.session.recovery import close_interrupted_turn\n"
        "events = [SessionEvent(*fields) for fields in json.load(sys.stdin)]\n"
        "print('\\n'.join(closer.line for closer in close_interrupted_turn(events)))\n"
    )
    events = record(INTERRUPTED)
    child = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps([[event.seq, event.time, event.type, event.text] for event in events]),
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout.splitlines() == [closer.line for closer in close_interrupted_turn(events)]
    assert len(child.stdout.splitlines()) == 4


def test_a_repaired_turn_reads_as_whole():
    """RPR-15: each call has one result directly after its message, and what came before it is as it was."""
    earlier = (
        *(*OPENED, ev.StepStart(1, 1), asking("x"), started("x"), done("x", 5, {"é": [1.0, None]}), ev.StepEnd(1, 1)),
        *(ev.StepStart(1, 2), ev.AssistantMessage(1, 2, [{"type": "text", "text": "ok"}], [], MODEL, "stop")),
        *(ev.StepEnd(1, 2), ev.TurnEnd(1, "completed")),
        *(accepted("m2"), ev.TurnStart(2, ["m2"]), taken("m2", 2), ev.StepStart(2, 1)),
    )
    cut = record((*earlier, asking("a", "b", turn=2), started("a", 2), started("b", 2)))
    model = ModelRef("script", "test")
    before = (
        UserMessage((TextBlock("this is m1"),)),
        AssistantMessage((ToolCallBlock("x", "act", "{}"),), model),
        ToolMessage("x", False, '{"é":[1.0,null]}'),
        AssistantMessage((TextBlock("ok"),), model),
        UserMessage((TextBlock("this is m2"),)),
    )
    assert derive_messages(record(earlier)) == before
    assert derive_messages(cut + close_interrupted_turn(cut)) == (
        *before,
        AssistantMessage((ToolCallBlock("a", "act", "{}"), ToolCallBlock("b", "act", "{}")), model),
        ToolMessage("a", True, f"Error: {UNKNOWN['message']}"),
        ToolMessage("b", True, f"Error: {UNKNOWN['message']}"),
    )


def test_a_call_that_was_refused_but_lost_its_result_counts_as_unknown():
    """RPR-17: its log is that of a call that ran, so nothing better can be said; what it nested stays as it is."""
    nested = (
        ev.ToolNested(1, 1, "a", "a:1", "inner", "{}", False),
        ev.ToolNested(1, 1, "a", "a:2", "inner", "{}", True, error={"code": "DENIED", "message": "no"}),
    )
    check_closers((*ASKED, started("a")), *CLOSERS)
    check_closers((*ASKED, started("a"), *nested), *CLOSERS)


async def test_a_skipped_call_is_never_stored_without_its_result():
    """RPR-17: a call skipped by cancellation and its result are one group, however small the batches are."""

    @tool
    async def act() -> str:
        return "done"

    house = House(
        steps=[[call("act", {}, id="a"), call("act", {}, id="b")], say("fine")],
        tools=[act],
        drain_limits=DrainLimits(max_batch_events=1, write_behind_ms=None),
    )
    async with house.agent() as agent:
        at(agent.session, "assistant/message", agent.cancel)
        await agent.wait(agent.send("go"))
        calls = [event.seq for event in agent.session.events if event.type == "tool/call"]
        results = [data["call_seq"] for data in data_of(agent.session, "tool/result")]
        stored = await house.persistence.read("s")
        ends = [end.seq for end in stored.ends]
        assert len(calls) == 2
        assert results == calls
        assert len(ends) > 8
        assert not set(ends) & set(calls)
        for end in ends:
            events = stored.events[: end + 1]
            closers = close_interrupted_turn(events)
            assert encode(UNKNOWN["code"]) not in "".join(event.text for event in closers)

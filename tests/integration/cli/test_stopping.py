"""Ctrl-C and SIGTERM: once, the turn is closed properly; twice, the process ends at once, and the session goes on."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.integration.cli.command import EXTENSIONS, Command, Done, outcomes, types

STOPPING = "stopping; Ctrl-C again stops at once, and the session can still be resumed\n"
BODY = {"tools__extra__wait_a_moment": f"{EXTENSIONS}:wait_a_moment"}
STUCK_BODY = {"tools__extra__mark_and_stay": f"{EXTENSIONS}:mark_and_stay"}
CALL = {"call": "wait_a_moment", "id": "c1"}
STUCK_CALL = {"call": "mark_and_stay", "arguments": {"text": "c1"}, "id": "c1"}


def test_ctrl_c_in_an_answer_keeps_what_was_visible(beforehand: Command) -> None:
    model = beforehand.script([{"say": "Half an"}, {"pause": 60}, {"say": "answer"}])
    with beforehand.start("run", "hi", "--session", "s", "--model", model) as running:
        running.wait_for_output("Half an")
        running.send(signal.SIGINT)
        done = running.ended()
    assert done == Done(130, "Half an\n", f"session s\n{STOPPING}turn 1 was cancelled; its log is closed\n")
    found = beforehand.shown("s")
    assert types(found)[-4:] == ["chunk*", "assistant/message", "step/end", "turn/end{aborted}"]
    assert found["events"][-1]["data"] == {"turn": 1, "reason": "aborted", "cause": "user"}
    assert (found["closers"], found["owner"]["name"]) == ([], None)


def test_ctrl_c_while_the_model_thinks(beforehand: Command) -> None:
    with beforehand.start("run", "hi", "--session", "s", "--model", f"python:{EXTENSIONS}:Stuck") as running:
        running.wait_for("in the adapter")
        running.send(signal.SIGINT)
        done = running.ended()
    assert (done.code, done.out) == (130, "")
    assert types(beforehand.shown("s"))[-3:] == ["request/header", "step/end", "turn/end{aborted}"]


def test_ctrl_c_in_a_tool_waits_for_its_body(beforehand: Command) -> None:
    with beforehand.start("run", "hi", "--session", "s", "--model", beforehand.script(CALL), **BODY) as running:
        running.wait_for("in the body")
        running.send(signal.SIGINT)
        done = running.ended()
    assert done.code == 130
    assert outcomes(beforehand.shown("s")["events"]) == [("c1", "ABORTED")]
    assert types(beforehand.shown("s"))[-1] == "turn/end{aborted}"


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_stops_at_once_and_the_session_is_resumed(beforehand: Command, second: signal.Signals) -> None:
    model = beforehand.script(STUCK_CALL)
    with beforehand.start("run", "hi", "--session", "s", "--model", model, **STUCK_BODY) as running:
        running.wait_for("after the effect")
        running.send(signal.SIGINT)
        running.wait_for("stopping")
        running.send(second)
        done = running.ended()
    assert done.code == 128 + second
    assert types(beforehand.shown("s"))[-1] == "tool/call"
    resumed = beforehand("resume", "s", "go on", "--model", f"python:{EXTENSIONS}:Reader")
    assert (resumed.code, resumed.out.splitlines()[0]) == (0, "read")
    assert outcomes(beforehand.shown("s")["events"]) == [("c1", "TOOL_OUTCOME_UNKNOWN")]


def test_sigterm_in_a_body_that_ends_in_time_closes_the_log(beforehand: Command) -> None:
    """LIF-16."""
    with beforehand.start("run", "hi", "--session", "s", "--model", beforehand.script(CALL), **BODY) as running:
        running.wait_for("in the body")
        running.send(signal.SIGTERM)
        done = running.ended()
    assert done.code == 143
    assert done.err.splitlines()[-1] == (
        "beforehand: stopped by SIGTERM; the log is closed, and the session can be resumed"
    )
    found = beforehand.shown("s")
    assert outcomes(found["events"]) == [("c1", "ABORTED")]
    assert found["events"][-1]["data"] == {"turn": 1, "reason": "aborted", "cause": "shutdown"}
    assert (found["closers"], found["owner"]["name"]) == ([], None)


@pytest.mark.parametrize("body", ["mark_and_stay", "refuse_to_end"])
def test_sigterm_in_a_body_that_does_not_end_leaves_the_log_to_recovery(beforehand: Command, body: str) -> None:
    """LIF-16: a thread that goes on for ever, and a task that nobody can cancel."""
    settings: dict[str, Any] = {"tools__extra__mark_and_stay": f"{EXTENSIONS}:{body}", "shutdown_timeout_s": 1}
    model = beforehand.script(STUCK_CALL)
    with beforehand.start("run", "hi", "--session", "s", "--model", model, **settings) as running:
        running.wait_for("after the effect")
        running.send(signal.SIGTERM)
        done = running.ended()
    assert done.code == 143
    assert "beforehand: session s: its turn has not ended; it is left to recovery\n" in done.err
    assert types(beforehand.shown("s"))[-1] == "tool/call"
    assert beforehand("resume", "s").code == 0
    found = beforehand.shown("s")
    assert outcomes(found["events"]) == [("c1", "TOOL_OUTCOME_UNKNOWN")]
    assert (types(found)[-1], found["closers"]) == ("turn/end{interrupted}", [])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_it_waits_for_an_owner(beforehand: Command, number: signal.Signals, code: int) -> None:
    model = beforehand.script([{"say": "one"}, {"pause": 60}])
    with beforehand.start("run", "hi", "--session", "s", "--model", model, owner="first") as first:
        first.wait_for_output("one")
        with beforehand.start("resume", "s", "go on", "--model", model, "--wait") as waiting:
            waiting.wait_for("waiting for 'first'")
            waiting.send(number)
            assert waiting.ended().code == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_when_all_is_done_does_not_disturb_the_closing(
    beforehand: Command, number: signal.Signals
) -> None:
    settings = {
        "persistence__kind": "leaving",
        "persistence__extra__leaving": f"{EXTENSIONS}:Leaving",
        "persistence__options__path": ".beforehand/sessions.db",
    }
    model = beforehand.script({"say": "Hello"})
    with beforehand.start("run", "hi", "--session", "s", "--model", model, **settings) as running:
        running.wait_for("leaving")
        running.send(number)
        if number == signal.SIGINT:
            running.wait_for("stopping")
        running.go_on()
        done = running.ended()
    assert (done.code, done.out) == (0, "Hello\n")
    found = beforehand.shown("s")
    assert (types(found)[-1], found["owner"]["name"]) == ("turn/end{completed}", None)


def test_ctrl_c_ends_tail(beforehand: Command) -> None:
    beforehand("run", "hi", "--session", "s", "--model", beforehand.script({"say": "Hello"}))
    with beforehand.start("tail", "s") as tail:
        tail.wait_for_output("turn 1 completed")
        tail.send(signal.SIGINT)
        done = tail.ended()
    assert (done.code, done.err) == (130, "")

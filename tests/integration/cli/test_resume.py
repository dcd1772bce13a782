"""`resume`: a killed session goes on, and the user reads what the model will read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.cli.command import EXTENSIONS, Command, Done, outcomes, types

UNKNOWN = (
    "Error: tool call was started, but its result was not recorded: it may or may not have taken effect. "
    "Verify the state, or ask the user, before calling it again"
)
NOT_STARTED = "Error: tool call was never started; call the tool again if it is still needed"
TWO_CALLS = [
    {"call": "mark_and_stay", "arguments": {"text": "one"}, "id": "c1"},
    {"call": "mark_and_stay", "arguments": {"text": "two"}, "id": "c2"},
]
READER = ("--model", f"python:{EXTENSIONS}:Reader")
PATIENT = ("--model", f"python:{EXTENSIONS}:Patient")
TOOLS = {"tools__extra__mark_and_stay": f"{EXTENSIONS}:mark_and_stay"}


@pytest.fixture
def killed(beforehand: Command) -> Command:
    """Where session `s` was killed in the first of two exclusive calls, after its effect and before its result."""
    with beforehand.start("run", "hi", "--session", "s", "--model", beforehand.script(TWO_CALLS), **TOOLS) as running:
        running.wait_for("after the effect")
        running.kill()
    return beforehand


def marks(command: Command) -> list[str]:
    return (command.directory / "marks").read_text().splitlines()


def test_a_session_killed_in_a_tool_is_closed_and_the_model_is_told_the_truth(killed: Command) -> None:
    """E2E-03, E2E-05, RUL-01: at once, while the lease of the dead process still runs."""
    before = killed.shown("s")
    assert before["owner"]["lease_left_s"] > 20
    assert [event["type"] for event in before["events"]][-2:] == ["assistant/message", "tool/call"]
    assert before["open_calls"] == [
        {"call_id": "c1", "name": "mark_and_stay", "call_seq": len(before["events"]) - 1},
        {"call_id": "c2", "name": "mark_and_stay", "call_seq": None},
    ]
    at = len(before["events"])
    done = killed("resume", "s", "go on", *READER, **TOOLS)
    assert done == Done(
        0,
        f"read\nc1: {UNKNOWN}\nc2: {NOT_STARTED}\n",
        "session s: turn 1 was cut short; these events close it\n"
        f"  + {at} tool/result  c1 TOOL_OUTCOME_UNKNOWN; the model will read: {UNKNOWN}\n"
        f"  + {at + 1} tool/result  c2 TOOL_NOT_STARTED; the model will read: {NOT_STARTED}\n"
        f"  + {at + 2} step/end  step 1.1\n"
        f"  + {at + 3} turn/end  turn 1 interrupted\n"
        "session s\n"
        "asked\n",
    )
    after = killed.shown("s")
    assert after["events"][:at] == before["events"]
    assert after["events"][at : at + 4] == before["closers"]
    assert types({"events": after["events"][at + 4 :]}) == [
        "inbox/accepted", "turn/start", "user/message", "step/start", "request/header",
        "chunk*", "assistant/message", "session/title", "step/end", "turn/end{completed}",
    ]  # fmt: skip
    assert [event["data"]["turn"] for event in after["events"] if event["type"] == "turn/start"] == [1, 2]
    assert marks(killed) == ["one"]


def test_resuming_again_changes_nothing(killed: Command) -> None:
    """E2E-04."""
    promised = killed.shown("s")
    first = killed("resume", "s", *READER)
    assert first.err.splitlines()[-1] == (
        "turn 1 was interrupted, and is not run again by itself; go on with: beforehand resume s 'go on'"
    )
    closed = killed.shown("s")
    assert closed["events"] == promised["events"] + promised["closers"]
    again = killed("resume", "s", *READER)
    told = "nothing was open in session s, and nothing is pending; go on with: beforehand resume s 'go on'\n"
    assert again == Done(0, "", told)
    assert killed.shown("s")["events"] == closed["events"]
    assert killed.shown("s")["head"] == closed["head"]


def test_without_a_model_a_session_is_closed_all_the_same(killed: Command) -> None:
    done = killed("resume", "s")
    assert (done.code, done.out) == (0, "")
    assert types(killed.shown("s"))[-1] == "turn/end{interrupted}"
    assert killed.shown("s")["owner"]["name"] is None


def test_with_json_the_closers_are_events_among_the_others(killed: Command) -> None:
    before = killed.shown("s")
    done = killed("resume", "s", "go on", *READER, "--json")
    assert (done.code, done.err) == (0, "session s\nasked\n")
    assert done.records == killed.shown("s")["events"][len(before["events"]) :]


def test_a_session_killed_in_the_adapter_is_closed(beforehand: Command) -> None:
    """E2E-01."""
    with beforehand.start("run", "hi", "--session", "s", "--model", f"python:{EXTENSIONS}:Stuck") as running:
        running.wait_for("in the adapter")
        running.kill()
    assert beforehand("resume", "s").code == 0
    assert types(beforehand.shown("s")) == [
        "inbox/accepted", "turn/start", "user/message", "step/start", "request/header",
        "step/end", "turn/end{interrupted}",
    ]  # fmt: skip


def test_an_accepted_prompt_that_no_turn_has_taken_runs_on_resume(beforehand: Command) -> None:
    """E2E-06."""
    settings: dict[str, Any] = {"policy__kind": "turn_end"}
    model = ("--model", f"python:{EXTENSIONS}:Stuck")
    with beforehand.start("run", "hi", "--session", "s", *model, **settings) as running:
        running.wait_for("in the adapter")
        running.wait_for("session s") if "session s" not in running.err else None
        running.kill()
    assert types(beforehand.shown("s")) == ["inbox/accepted"]
    without_model = beforehand("resume", "s")
    told = "beforehand: 1 messages are pending, and no model is configured: pass --model\n"
    assert without_model == Done(2, "", told)
    assert types(beforehand.shown("s")) == ["inbox/accepted"]
    assert beforehand("resume", "s", *READER) == Done(0, "read\n", "asked\n")
    assert types(beforehand.shown("s"))[-1] == "turn/end{completed}"


def test_killed_between_two_steps_the_first_one_is_whole(beforehand: Command) -> None:
    """E2E-07."""
    model = beforehand.script({"call": "mark", "arguments": {"text": "one"}, "id": "c1"})
    settings = {
        "tools__extra__mark": f"{EXTENSIONS}:mark",
        "post_step__extra__stay": f"{EXTENSIONS}:stay_after_the_step",
        "post_step__order": "usage,checkpoint,stay",
        "post_step__after_checkpoint_ok": "",
    }
    with beforehand.start("run", "hi", "--session", "s", "--model", model, **settings) as running:
        running.wait_for("after the step")
        running.kill()
    found = beforehand.shown("s")
    assert outcomes(found["events"]) == [("c1", "marked one")]
    assert [closer["type"] for closer in found["closers"]] == ["step/end", "turn/end"]
    done = beforehand("resume", "s", "go on", *READER)
    assert (done.code, done.out) == (0, "read\nc1: marked one\n")


def test_a_session_that_another_process_owns_is_exit_4_before_any_model_is_asked(beforehand: Command) -> None:
    """RUL-02: the owner, the seconds left, both options; a take-over fences the old owner."""
    model = beforehand.script([{"say": "one"}, {"pause": 60}, {"say": "two"}])
    with beforehand.start("run", "hi", "--session", "s", "--model", model, owner="first") as first:
        first.wait_for_output("one")
        for arguments in (("run", "hi", "--session", "s"), ("resume", "s", "go on"), ("resume", "s")):
            second = beforehand(*arguments, *READER)
            left = second.err.partition("its lease runs ")[2].partition(" s more")[0]
            assert 0 < float(left) <= 30
            assert second == Done(
                4,
                "",
                f"beforehand: session 's' is held by 'first', its lease runs {left} s more; wait for the lease to run "
                "out (--wait), or take the session over (--take-over), which ends that owner's writing\n",
            )
        taken = beforehand("resume", "s", "go on", "--take-over", *READER)
        assert (taken.code, taken.out) == (0, "read\n")
        first.process.terminate()
        fenced = first.ended()
    found = beforehand.shown("s")
    assert types(found)[-1] == "turn/end{completed}"
    assert [event["data"]["turn"] for event in found["events"] if event["type"] == "turn/start"] == [1, 2]
    assert "was taken over by another process" in fenced.err


def test_a_fenced_owner_that_writes_again_is_exit_4(beforehand: Command) -> None:
    """RUL-02."""
    with beforehand.start("run", "hi", "--session", "s", *PATIENT, owner="first") as first:
        first.wait_for_output("one")
        assert beforehand("resume", "s", "--take-over").code == 0
        first.go_on()
        done = first.ended()
    told = (
        "session 's' was taken over by another process; this one may not write to it any more "
        "and has to stop, nothing was written"
    )
    assert (done.code, done.out) == (4, "one\ntwo\n")
    assert f"beforehand: {told}\n" in done.err
    assert types(beforehand.shown("s"))[-1] == "turn/end{interrupted}"


def test_wait_takes_the_session_once_its_owner_has_released_it(beforehand: Command) -> None:
    """RUL-02."""
    with beforehand.start("run", "hi", "--session", "s", *PATIENT, owner="first") as first:
        first.wait_for_output("one")
        with beforehand.start("resume", "s", "go on", "--wait", *READER) as second:
            second.wait_for("waiting for 'first'")
            first.go_on()
            assert first.ended() == Done(0, "one\ntwo\n", "session s\n")
            waited = second.ended()
    waiting, *rest = waited.err.splitlines()
    assert (waited.code, waited.out) == (0, "read\n")
    assert waiting.startswith("waiting for 'first': its lease runs ")
    assert rest == ["session s", "asked"]


def test_of_two_processes_that_begin_a_session_at_once_one_runs_it(beforehand: Command) -> None:
    """The second one is told so before its model is asked."""
    settings = {
        "persistence__kind": "staying",
        "persistence__extra__staying": f"{EXTENSIONS}:Staying",
        "persistence__options__path": ".beforehand/sessions.db",
        "persistence__options__before": "inbox/accepted",
    }
    with beforehand.start("run", "hi", "--session", "s", *READER, **settings) as late:
        late.wait_for("before the commit")
        assert beforehand("run", "hi", "--session", "s", *READER) == Done(0, "read\n", "session s\nasked\n")
        late.go_on()
        refused = late.ended()
    assert (refused.code, refused.out) == (4, "")
    told = "session 's' was created by another process at this moment; nothing was written"
    assert f"beforehand: {told}\n" in refused.err
    assert "asked" not in refused.err
    assert types(beforehand.shown("s"))[-1] == "turn/end{completed}"

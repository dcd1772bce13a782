"""Killed at each point that a crash can leave behind, a session is closed as the table says, and takes a new turn."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.integration.cli.command import EXTENSIONS, Command, outcomes, types

UNKNOWN, NOT_STARTED = "TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"
END = ["step/end", "turn/end"]
WENT_ON = {"when": {"contains": "go on"}, "answer": {"say": "went on"}, "repeat": True}


def call(name: str, id: str) -> dict[str, Any]:
    arguments = {} if name.endswith("_and_stay") and name != "mark_and_stay" else {"text": id}
    return {"call": name, "arguments": arguments, "id": id}


@dataclass(frozen=True)
class Point:
    """Where the process is killed: as soon as the store has committed the nth batch that ends with `after`.

    With `every_event` that is right behind the nth event of this type. `results` are the closers' outcomes in order,
    `effects` the marks that the tools had left by then, `pending` the answers to what is still owed when it is resumed.
    """

    after: str
    closers: list[str]
    steps: list[Any] = field(default_factory=lambda: [{"say": "Hello"}])
    nth: int = 1
    results: list[tuple[str, Any]] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    pending: list[Any] = field(default_factory=list)
    answered: str = "went on\n"


ONE = [[call("mark", "c1")], {"say": "Done"}]
THREE = [[call("mark", "c1"), call("mark", "c2"), call("mark", "c3")], {"say": "Done"}]
FAILING = [{"fail": "SERVER"}, {"say": "Hello"}]

POINTS = {
    "K1": Point(
        "inbox/accepted",
        [],
        settings={"policy__kind": "turn_end"},
        pending=[{"say": "Hello"}],
        answered="Hello\nwent on\n",
    ),
    "K3": Point("user/message", ["turn/end"]),
    "K4 step/start": Point("step/start", END),
    "K4 request/header": Point("request/header", END),
    "K4 chunk": Point("assistant/chunk", END),
    "K5": Point("assistant/message", END),
    "K6": Point(
        "assistant/message",
        ["tool/result"] * 3 + END,
        THREE,
        results=[("c1", NOT_STARTED), ("c2", NOT_STARTED), ("c3", NOT_STARTED)],
    ),
    "K7": Point(
        "tool/call",
        ["tool/result"] * 3 + END,
        THREE,
        results=[("c1", UNKNOWN), ("c2", NOT_STARTED), ("c3", NOT_STARTED)],
    ),
    "K8": Point(
        "tool/call",
        ["tool/result"] * 2 + END,
        THREE,
        nth=2,
        results=[("c2", UNKNOWN), ("c3", NOT_STARTED)],
        effects=["c1"],
    ),
    "K10": Point("tool/result", END, ONE, effects=["c1"]),
    "K11 step/end": Point("step/end", ["turn/end"], ONE, effects=["c1"]),
    "K11 llm/retry": Point("llm/retry", ["turn/end"], FAILING),
    "K12": Point("turn/end", []),
    "K13": Point(
        "tool/nested",
        ["tool/result", *END],
        [call("nest_and_stay", "c1")],
        results=[("c1", UNKNOWN)],
        effects=["nested"],
    ),
    "K14": Point(
        "inbox/accepted",
        ["tool/result", *END],
        [call("steer_and_stay", "c1")],
        nth=2,
        results=[("c1", UNKNOWN)],
        settings={"write_behind_ms": 1, "policy__kind": "semantic"},
        pending=[{"say": "turned"}],
        answered="turned\nwent on\n",
    ),
}


def settings_of(point: Point) -> dict[str, Any]:
    tools = ("mark", "mark_and_stay", "nest_and_stay", "steer_and_stay", "wait_a_moment", "slow", "fast", "reconciled")
    return {
        "policy__kind": "every_event",
        "retry__base_ms": 1,
        "persistence__kind": "staying",
        "persistence__extra__staying": f"{EXTENSIONS}:Staying",
        "persistence__options__path": ".beforehand/sessions.db",
        "persistence__options__after": point.after,
        "persistence__options__nth": point.nth,
        **{f"tools__extra__{name}": f"{EXTENSIONS}:{name}" for name in tools},
        **point.settings,
    }


def marks(command: Command) -> list[str]:
    path = command.directory / "marks"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS.keys())
def test_killed_at_this_point(beforehand: Command, point: Point) -> None:
    """E2E-11 (not K2, which only an import can leave), E2E-08 (K12)."""
    model = beforehand.script(*point.steps)
    with beforehand.start("run", "hi", "--session", "s", "--model", model, **settings_of(point)) as running:
        running.wait_for("after the commit")
        running.kill()
    check_repair(beforehand, point)


def check_repair(beforehand: Command, point: Point) -> None:
    """Killed, the log ends as it should; closed, it takes a turn; again, nothing changes. No effect is doubled."""
    killed = beforehand.shown("s")
    assert killed["events"][-1]["type"] == point.after
    assert [closer["type"] for closer in killed["closers"]] == point.closers
    assert outcomes(killed["closers"]) == point.results
    assert marks(beforehand) == point.effects
    went_on = beforehand("resume", "s", "go on", "--model", beforehand.script(WENT_ON, *point.pending))
    assert (went_on.code, went_on.out) == (0, point.answered)
    resumed = beforehand.shown("s")
    length = len(killed["events"])
    assert resumed["events"][:length] == killed["events"]
    assert resumed["events"][length : length + len(point.closers)] == killed["closers"]
    assert (types(resumed)[-1], resumed["closers"]) == ("turn/end{completed}", [])
    assert beforehand("resume", "s").code == 0
    assert beforehand.shown("s")["events"] == resumed["events"]
    assert marks(beforehand) == point.effects


def test_killed_with_two_parallel_calls_of_which_the_second_had_ended(beforehand: Command) -> None:
    """E2E-11 (K9): results are recorded in the order of the message only, so the effect of the second is not known."""
    steps = [[call("slow", "c1"), call("fast", "c2")]]
    point = Point(
        "tool/call", ["tool/result"] * 2 + END, steps, results=[("c1", UNKNOWN), ("c2", UNKNOWN)], effects=["c1", "c2"]
    )
    settings = {**settings_of(point), "persistence__options__nth": 99}
    with beforehand.start("run", "hi", "--session", "s", "--model", beforehand.script(*steps), **settings) as running:
        running.wait_for("after the effect")
        while "c2" not in marks(beforehand):
            assert running.process.poll() is None
        running.kill()
    check_repair(beforehand, Point(**{**vars(point), "effects": marks(beforehand)}))


def test_killed_while_an_earlier_resume_was_asking_what_became_of_a_call(beforehand: Command) -> None:
    """E2E-11 (K15): it had taken its epoch and stored no closer."""
    point = Point("tool/call", ["tool/result", *END], [call("reconciled", "c1")], results=[("c1", UNKNOWN)])
    settings = {**settings_of(point), "persistence__options__nth": 99}
    with beforehand.start("run", "hi", "--session", "s", "--model", beforehand.script(*point.steps), **settings) as run:
        run.wait_for("after the effect")
        run.kill()
    killed = beforehand.shown("s")
    tools = {"tools__extra__reconciled": f"{EXTENSIONS}:reconciled"}
    with beforehand.start("resume", "s", **tools, reconcile_timeout_s=60, test_stay_in_reconcile=1) as first:
        first.wait_for("reconciling")
        first.kill()
    between = beforehand.shown("s")
    assert between["events"] == killed["events"]
    assert between["owner"]["epoch"] == killed["owner"]["epoch"] + 1
    done = beforehand("resume", "s", "go on", "--model", beforehand.script(WENT_ON), **tools)
    assert (done.code, done.out) == (0, "went on\n")
    assert outcomes(beforehand.shown("s")["events"]) == [("c1", "found out about c1")]
    assert beforehand.shown("s")["owner"]["epoch"] == killed["owner"]["epoch"] + 2
    assert marks(beforehand) == ["c1"]


def test_killed_while_a_cancelled_batch_is_being_closed(beforehand: Command) -> None:
    """E2E-11 (K16): of three calls the first ran, the second was skipped as one group, the third was not reached."""
    steps = [[call("wait_a_moment", "c1") | {"arguments": {}}, call("mark", "c2"), call("mark", "c3")]]
    point = Point("tool/result", ["tool/result", *END], steps, nth=2, results=[("c3", NOT_STARTED)])
    model = beforehand.script(*steps)
    with beforehand.start("run", "hi", "--session", "s", "--model", model, **settings_of(point)) as running:
        running.wait_for("in the body")
        running.send(signal.SIGINT)
        running.wait_for("after the commit")
        running.kill()
    assert outcomes(beforehand.shown("s")["events"]) == [("c1", "ABORTED"), ("c2", "ABORTED_BEFORE_DISPATCH")]
    check_repair(beforehand, point)


@pytest.mark.parametrize(
    ("place", "result", "effects"),
    [("before C2 returned", None, []), ("after C2", UNKNOWN, []), ("after the effect", UNKNOWN, ["c1"])],
)
def test_killed_round_the_tool_checkpoint(
    beforehand: Command, place: str, result: str | None, effects: list[str]
) -> None:
    """E2E-09: before the commit of C2 there is no call in the log, and the body was not entered."""
    tool = "mark_and_stay" if place == "after the effect" else "mark"
    model = beforehand.script([call(tool, "c1")])
    settings: dict[str, Any] = {f"tools__extra__{tool}": f"{EXTENSIONS}:{tool}"}
    if place == "before C2 returned":
        settings |= {
            "persistence__kind": "staying",
            "persistence__extra__staying": f"{EXTENSIONS}:Staying",
            "persistence__options__path": ".beforehand/sessions.db",
            "persistence__options__before": "tool/call",
        }
    if place == "after C2":
        settings |= {
            "tool_middleware__extra__stay": f"{EXTENSIONS}:stay_before_the_body",
            "tool_middleware__order": "checkpoint,stay",
        }
    said = {"before C2 returned": "before the commit", "after C2": "before the body", "after the effect": place}[place]
    with beforehand.start("run", "hi", "--session", "s", "--model", model, **settings) as running:
        running.wait_for(said)
        running.kill()
    killed = beforehand.shown("s")
    assert ("tool/call" in types(killed)) is (result is not None)
    assert outcomes(killed["closers"]) == ([] if result is None else [("c1", result)])
    done = beforehand("resume", "s", "go on", "--model", beforehand.script(WENT_ON))
    assert (done.code, done.out) == (0, "went on\n")
    assert marks(beforehand) == effects


def test_killed_in_the_third_call_the_first_two_results_are_kept_byte_for_byte(beforehand: Command) -> None:
    """E2E-10."""
    steps = [[call("mark", "c1"), call("mark", "c2"), call("mark_and_stay", "c3")]]
    point = Point("tool/call", ["tool/result", *END], steps, results=[("c3", UNKNOWN)], effects=["c1", "c2", "c3"])
    settings = {**settings_of(point), "persistence__options__nth": 99, "policy__kind": "semantic"}
    with beforehand.start("run", "hi", "--session", "s", "--model", beforehand.script(*steps), **settings) as running:
        running.wait_for("after the effect")
        running.kill()
    assert outcomes(beforehand.shown("s")["events"]) == [("c1", "marked c1"), ("c2", "marked c2")]
    check_repair(beforehand, point)

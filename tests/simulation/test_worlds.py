"""The real runtime in simulated worlds: processes killed, stopped and cut off, a store that loses and forgets."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.simulation.playing import Tally, every_kill, replay, worlds
from tests.simulation.service import DEEDS
from tests.simulation.store import FAULTS

SEEDS = 500
ENDS = ("completed", "aborted", "interrupted", "max_tokens", "CHECKPOINT_FAILED", "AUTH", "RATE_LIMIT", "STREAM_CLOSED")
RESULTS = (
    *("NO_LUCK", "TOOL_TIMEOUT", "UNKNOWN_TOOL", "DENIED", "ABORTED", "ABORTED_BEFORE_DISPATCH", "CHECKPOINT_FAILED"),
    *("TOOL_NOT_STARTED", "TOOL_OUTCOME_UNKNOWN"),
)
KINDS = (
    *(*DEEDS, *FAULTS, "kill", "pause", "end", "fail over"),
    *("llm/retry", "request/header resume", "inbox/discarded", "tool/nested", "tool/result"),
    *(f"turn/end {how}" for how in ENDS),
    *(f"tool/result {code}" for code in RESULTS),
)
"""What has to come to pass in some world, or the worlds try less than they say."""


RECORDED = {
    30886: "a new owner begins the turn that the old one began in the same millisecond: the batches are equal",
    152006: "a claim that nobody was told of is gone with a failover, and the owner before it writes on",
}
"""Worlds in which something was found once, and what. They mean what they meant as long as worlds are drawn alike."""


def _tallied(outcomes: object) -> Tally:
    tally = Tally()
    for outcome in outcomes:  # type: ignore[attr-defined]
        tally.add(outcome)
    return tally


def _told(tally: Tally) -> list[str]:
    return [f"{replay(outcome.seed, outcome.kill_at)}: {outcome.violations}" for outcome in tally.failed]


def test_nothing_happens_in_any_world_that_may_not():
    """Every seed is a world of its own; a violation names the command that plays it again."""
    tally = _tallied(worlds(range(SEEDS)))
    assert _told(tally) == []
    assert min(tally.acknowledged, tally.requests, tally.bodies) > SEEDS  # or nothing much happened at all
    assert [kind for kind in KINDS if not tally.happened[kind]] == []


def test_nothing_happens_any_more_where_something_was_found():
    assert _told(_tallied(worlds(RECORDED))) == []


def test_a_process_may_be_killed_at_each_of_its_steps():
    """Between any two callbacks of the event loop: the next process finds a log that it can go on with."""
    tally = _tallied(every_kill(0))
    assert _told(tally) == []
    assert tally.worlds > 100


def test_a_seed_is_the_same_world_every_time():
    """Else no violation could be looked at again."""
    command = [sys.executable, "-m", "tests.simulation", "--seed", "1"]
    runs = {
        subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": str(n)}
        ).stdout
        for n in (1, 2)
    }
    assert len(runs) == 1
    assert len(runs.pop().splitlines()) > 20

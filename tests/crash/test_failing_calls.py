"""A disk that fails at one call, at every call there is: half a write, no room, no disk, or the end of the process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.counting import count
from tests.support.failing_calls import FOR_EVER, KILLED, ONCE, run

ENDS = {
    **{way: ["done"] for way in ONCE},
    **{way: ["done", "PERSISTENCE_UNAVAILABLE", "STORE_UNUSABLE"] for way in FOR_EVER},  # done: in closing, at the end
    **{way: ["SIGKILL"] for way in KILLED},
}


@pytest.mark.parametrize(("kind", "calls"), [("sqlite", 100), ("jsonl", 30)])
@pytest.mark.timeout(600)
def test_a_call_that_fails_loses_nothing_and_what_is_tried_again_succeeds(tmp_path: Path, kind: str, calls: int):
    """ST-08, ST-10: and if trying again is no use, an error of ours says so; the next process goes on."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("not run: there is no C compiler")
    report = run(kind, tmp_path, compiler)
    name, found = f"a file-system call that fails, {kind}", len(report.violations)
    count(name, runs=report.runs, acknowledged=report.acknowledged, violations=found)
    assert report.violations == []
    for end in report.ends:
        way, _, how = end.partition(": ")
        assert how in ENDS[way], end
    assert len(report.calls) >= calls
    assert report.runs == sum(report.ends.values()) > 5 * calls
    assert report.acknowledged > report.runs

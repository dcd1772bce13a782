"""The table says what was written down: nothing that failed is left out, and nothing that did not run is a run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.figures.__main__ import END, PAGE
from tests.figures.table import Figures, Portion, Row, joined


def counted(layer: str, runs: int, violations: int = 0, seeds: str = "", test: str = "") -> dict[str, Any]:
    return {"layer": layer, "runs": runs, "acknowledged": 10, "violations": violations, "seeds": seeds, "test": test}


def ended(test: str, outcome: str = "passed", when: str = "call", reason: str = "") -> dict[str, Any]:
    return {"test": test, "when": when, "outcome": outcome, "seconds": 2.0, "reason": reason}


def rows(*lines: dict[str, Any], failed: bool = False) -> list[Row]:
    return Portion("disks", list(lines), 30.0, failed).rows


def test_what_tests_counted_is_summed_by_layer_and_timed_by_test():
    lines = [counted("cuts", 5, seeds="1", test="a"), ended("a"), counted("cuts", 6, seeds="2", test="b"), ended("b")]
    assert rows(*lines) == [Row("cuts", 11, 20, 0, ["1:3"], 4.0)]


def test_tests_that_count_nothing_are_a_run_each():
    assert rows(ended("a"), ended("a", when="teardown"), ended("b")) == [Row("disks, a test each", 2, seconds=6.0)]


def test_the_time_of_another_command_is_that_of_its_rows():
    assert rows(counted("worlds", 5), counted("worlds", 5)) == [Row("worlds", 10, 20, seconds=30.0)]


def test_a_test_that_failed_is_a_violation_also_when_it_counted_none():
    [row] = rows(counted("cuts", 5, test="a"), ended("a", "failed"), failed=True)
    assert (row.layer, row.violations) == ("cuts", 1)
    [row] = rows(counted("cuts", 5, violations=3, test="a"), ended("a", "failed"), failed=True)
    assert row.violations == 3
    [row] = rows(ended("a", "failed"), ended("b", "failed", "setup"), failed=True)
    assert (row.runs, row.violations) == (0, 2)


def test_a_command_that_broke_is_a_violation_though_nothing_was_written_down():
    assert rows(failed=True) == [Row("disks, a test each", 0, 0, 1, seconds=30.0)]


def test_what_was_skipped_is_no_run_and_says_why():
    portion = Portion("disks", [ended("a", "skipped", "setup", "there is no C compiler")], 1.0, failed=False)
    assert (portion.rows, portion.not_run) == ([], {"disks: there is no C compiler"})
    figures = Figures()
    figures.add(portion)
    assert str(figures).endswith("\n\nNot run: disks: there is no C compiler.")


def test_portions_of_a_layer_make_one_row():
    figures = Figures()
    figures.add(Portion("worlds", [counted("worlds", 5_000, seeds="0:5000")], 30.0, failed=False))
    figures.add(Portion("worlds", [counted("worlds", 5_000, seeds="5000:10000")], 50.0, failed=False))
    assert str(figures).splitlines() == [
        "| Layer  | Runs   | Events acknowledged | Violations | Seeds   | Time       |",
        "| ------ | ------ | ------------------- | ---------- | ------- | ---------- |",
        "| worlds | 10,000 | 20                  | 0          | 0:10000 | 1 min 20 s |",
    ]


@pytest.mark.parametrize(
    ("seeds", "together"),
    [([], []), (["3", "1", "2"], ["1:4"]), (["7", "0:5", "5:6"], ["0:6", "7"]), (["0:9", "2:4"], ["0:9"])],
)
def test_seeds_that_touch_are_joined(seeds: list[str], together: list[str]):
    assert joined(seeds) == together


@pytest.mark.parametrize("task", ["crash", "soak"])
def test_the_page_has_a_place_for_the_figures(task: str):
    _, begin, rest = PAGE.read_text().partition(f"<!-- figures of {task} -->\n")
    assert begin
    assert END in rest.partition("<!-- figures")[0]

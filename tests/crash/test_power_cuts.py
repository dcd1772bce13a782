"""The power goes while a store writes: what it acknowledged is there afterwards, and what it needs for that is needed.

A run that fails is run again by the command it names.
"""

from __future__ import annotations

import pytest

from tests.support.counting import SEED, amount, count
from tests.support.power_cuts import UNSAFE, Report, run

CUTS = amount("POWER_CUTS", 10)  # for each store


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
@pytest.mark.timeout(60 + 10 * CUTS)
def test_what_was_acknowledged_before_a_power_cut_is_there_after_it(kind: str):
    """Byte for byte, in whole batches; what was deleted stays so; the session is resumed and written to."""
    report = run_here(kind, CUTS)
    name, found = f"power cuts, {kind}", len(report.violations)
    count(name, runs=report.cuts, acknowledged=report.acknowledged, violations=found, seeds=str(SEED))
    assert report.violations == [], f"python -m tests.support.power_cuts {kind} {CUTS} {SEED}"
    assert report.cuts == CUTS
    assert report.acknowledged > CUTS


@pytest.mark.parametrize("without", UNSAFE)
def test_a_store_that_leaves_out_what_it_needs_loses_what_it_acknowledged(without: str):
    """The same cuts see it: those of the other test would, too."""
    report = run_here(UNSAFE[without][0], 200, without)
    count("power cuts until an unsafe store is found out", runs=report.cuts, seeds=str(SEED))
    assert len(report.violations) > 0, f"nothing was lost in {report.cuts} cuts without {without}"


def run_here(kind: str, cuts: int, without: str = "") -> Report:
    report = run(kind, cuts, str(SEED), without)
    if report.not_run:
        pytest.skip(f"not run: {report.not_run}")
    return report

"""How often things are tried, by the environment, and what came of it, for the figures of docs/guarantees.md."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

COUNTS = "BEFOREHAND_TEST_COUNTS"
"""The file to which counts and the ends of tests are appended, where it is set: a JSON object a line."""

SEED = int(os.environ.get("BEFOREHAND_TEST_SEED", "0"))
"""The first seed of whatever draws lots, so that a longer run does not play again what was played before."""


def amount(name: str, default: int) -> int:
    """How many of a thing are tried: BEFOREHAND_TEST_<name>, or what a plain run of the tests takes."""
    return int(os.environ.get(f"BEFOREHAND_TEST_{name}", default))


def count(layer: str, *, runs: int, acknowledged: int = 0, violations: int = 0, seeds: str = "") -> None:
    """Say what a layer did: call it before the violations are asserted on, or they are in no table.

    `acknowledged` counts events that a store confirmed, `seeds` is what to give to play the same again, such as 0:5000.
    """
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    _write(layer=layer, runs=runs, acknowledged=acknowledged, violations=violations, seeds=seeds, test=test)


def note(report: pytest.TestReport) -> None:
    """Keep how a phase of a test ended and what it took; of a skipped one, why."""
    reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
    reason = reason.removeprefix("Skipped: ").removeprefix("not run: ")
    _write(test=report.nodeid, when=report.when, outcome=report.outcome, seconds=report.duration, reason=reason)


def _write(**line: Any) -> None:
    if path := os.environ.get(COUNTS):
        with Path(path).open("ab", buffering=0) as file:
            file.write((json.dumps(line) + "\n").encode())

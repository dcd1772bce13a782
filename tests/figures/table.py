"""What a run wrote down becomes rows, and the rows the table that is printed and that docs/guarantees.md has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

HEADINGS = ("Layer", "Runs", "Events acknowledged", "Violations", "Seeds", "Time")


@dataclass
class Row:
    """`seeds` are what to give to play the same again; `seconds` is how long all the runs took together."""

    layer: str
    runs: int = 0
    acknowledged: int = 0
    violations: int = 0
    seeds: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Row) -> None:
        self.runs += other.runs
        self.acknowledged += other.acknowledged
        self.violations += other.violations
        self.seeds = joined([*self.seeds, *other.seeds])
        self.seconds += other.seconds


@dataclass(frozen=True)
class Portion:
    """What a layer's command wrote down (tests/support/counting.py), how long it took, and whether it failed."""

    name: str
    lines: list[dict[str, Any]]
    seconds: float
    failed: bool

    @property
    def rows(self) -> list[Row]:
        """A row for each layer that was counted, and one for the tests that counted nothing."""
        rows: dict[str, Row] = {}
        counted: dict[str, Row] = {}
        told: set[str] = set()
        for line in self.lines:
            if "layer" in line:
                seeds = line["seeds"].split(", ") if line["seeds"] else []
                row = counted[line["test"]] = rows.setdefault(line["layer"], Row(line["layer"]))
                row.add(Row("", line["runs"], line["acknowledged"], line["violations"], seeds))
                told |= {line["test"]} if line["violations"] else set()
        plain = Row(f"{self.name}, a test each")
        tests = [line for line in self.lines if "outcome" in line]
        for line in tests:
            row = counted.get(line["test"], plain)
            row.seconds += line["seconds"]
            row.runs += row is plain and (line["when"], line["outcome"]) == ("call", "passed")
            row.violations += line["outcome"] == "failed" and line["test"] not in told
        plain.violations += self.failed and not any(row.violations for row in [*rows.values(), plain])
        found = [row for row in [*rows.values(), plain] if row.runs or row.violations]
        for row in found if not tests else []:  # its command is no pytest
            row.seconds = self.seconds / len(found)
        return found

    @property
    def not_run(self) -> set[str]:
        """The reasons of the tests that were skipped."""
        return {f"{self.name}: {line['reason']}" for line in self.lines if line.get("outcome") == "skipped"}


@dataclass
class Figures:
    """All that a run found. `not_run` says what could not be tried here, and why."""

    rows: list[Row] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)

    @property
    def violations(self) -> int:
        return sum(row.violations for row in self.rows)

    def add(self, portion: Portion) -> None:
        for row in portion.rows:
            known = next((known for known in self.rows if known.layer == row.layer), None)
            if known is None:
                self.rows.append(known := Row(row.layer))
            known.add(row)
        self.not_run = sorted({*self.not_run, *portion.not_run})

    def __str__(self) -> str:
        cells = [HEADINGS, *map(_cells, self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
        lines = [cells[0], ["-" * width for width in widths], *cells[1:]]
        table = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
        return "\n".join([*table, *(f"\nNot run: {reason}." for reason in self.not_run)])


def joined(seeds: Iterable[str]) -> list[str]:
    """Single seeds and ranges such as 0:5000, in order, with those that touch made one."""
    ranges: list[list[int]] = []
    for first, last in sorted(map(_range, seeds)):
        if ranges and first <= ranges[-1][1]:
            ranges[-1][1] = max(last, ranges[-1][1])
        else:
            ranges.append([first, last])
    return [str(first) if last == first + 1 else f"{first}:{last}" for first, last in ranges]


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    return int(first), int(last or int(first) + 1)


def _cells(row: Row) -> Sequence[str]:
    acknowledged = f"{row.acknowledged:,}" if row.acknowledged else ""
    minutes, seconds = divmod(round(row.seconds), 60)
    time = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    return row.layer, f"{row.runs:,}", acknowledged, f"{row.violations:,}", ", ".join(row.seeds), time

"""Breaks everything on purpose and counts: `python -m tests.figures crash [LAYER]...`, `python -m tests.figures soak`.

Both print a table and put it into docs/guarantees.md, unless a layer was named, or CI=true. A soak that was ended goes
on where it was, and tries again what failed; without the directory .soak it begins anew.
"""

from __future__ import annotations

import os
import platform
import sys
import time

from tests.figures.layers import LAYERS
from tests.figures.running import AT_ONCE, ROOT, crash, soak
from tests.figures.table import Figures

PAGE = ROOT / "docs" / "guarantees.md"
END = "<!-- end of figures -->"


def main(task: str, texts: list[str]) -> int:
    """0 if nothing was found that may not be."""
    portions, began = [], time.monotonic()
    for portion in soak(ROOT / ".soak") if task == "soak" else crash(texts):
        portions.append(portion)
        found = "; ".join(f"{row.layer}: {row.runs:,} runs, {row.violations} violations" for row in portion.rows)
        print(f"{time.monotonic() - began:6.0f} s  {found or f'{portion.name}: not run'}", flush=True)
    machine = f"CPython {platform.python_version()} on {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    figures, names = Figures(), [layer.name for layer in LAYERS]
    for portion in sorted(portions, key=lambda portion: names.index(portion.name)):
        figures.add(portion)
    minutes = sum(portion.seconds for portion in portions) / 60
    when = f"{time.strftime('%d %B %Y')}, {minutes:.0f} minutes of runs, {AT_ONCE} at a time"
    text = f"`python3 dev.py {task}`: {when}, {machine}.\n\n{figures}\n"
    print(f"\n{text}", flush=True)
    if not texts and os.environ.get("CI") != "true":
        write(task, text)
    return bool(figures.violations)


def write(task: str, text: str) -> None:
    """Put it in the place of what stands for this task in docs/guarantees.md."""
    before, begin, rest = PAGE.read_text().partition(f"<!-- figures of {task} -->\n")
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE} has no place for the figures of {task}: it needs the two marks around them")
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{after}")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], sys.argv[2:]))
    except KeyboardInterrupt:
        sys.exit(130)

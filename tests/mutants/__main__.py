"""Tries mutants, all or those whose name or layer holds a text: `python -m tests.mutants [TEXT]...`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.mutants.catalogue import MUTANTS
from tests.mutants.running import tried
from tests.support.counting import count


def main(texts: list[str]) -> int:
    """0 if every one was caught by its layer."""
    survivors = 0
    for mutant in MUTANTS:
        if texts and not any(text in f"{mutant.name} {mutant.layer}" for text in texts):
            continue
        with tempfile.TemporaryDirectory() as directory:
            verdict = tried(mutant, Path(directory))
        survivors += not verdict.is_caught
        count("mutants, each caught by its layer", runs=1, violations=not verdict.is_caught)
        word = "caught  " if verdict.is_caught else "SURVIVES"
        print(f"{word}  {mutant.name}  [{mutant.layer}]\n          {verdict.said[:140]}", flush=True)
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

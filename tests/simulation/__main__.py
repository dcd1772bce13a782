"""Plays worlds: `python -m tests.simulation --seeds 0:5000`, `--kills 10` (every step of ten seeds), `--seed 17`."""

from __future__ import annotations

import argparse
import os
import sys
from itertools import chain

from tests.simulation.playing import Tally, every_kill, replay, worlds
from tests.simulation.world import play


def main() -> int:
    """0 if nothing happened that may not, else 1; a line for each world in which something did."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:500", metavar="FROM:TO")
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="kill at every step of so many seeds")
    parser.add_argument("--first", action="store_true", help="stop at the first violation")
    parser.add_argument("--seed", type=int, help="play one world and print its log")
    parser.add_argument("--kill-at", type=int)
    options = parser.parse_args()
    if options.seed is not None:
        outcome = play(options.seed, options.kill_at)
        print(*outcome.trace, *outcome.violations, sep="\n", flush=True)
        os._exit(bool(outcome.violations))  # what lies dead in this process must not come to life again
    first, _, last = options.seeds.partition(":")
    tally = Tally()
    for outcome in chain(worlds(range(int(first), int(last))), *map(every_kill, range(options.kills))):
        tally.add(outcome)
        if outcome.violations:
            print(f"{replay(outcome.seed, outcome.kill_at)}\n  " + "\n  ".join(outcome.violations[:5]), flush=True)
            if options.first:
                break
    print(tally)
    return bool(tally.failed)


if __name__ == "__main__":
    sys.exit(main())

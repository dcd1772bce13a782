"""Plays worlds: `python -m tests.simulation --seeds 0:5000`, `--kills 10` (every step of ten seeds), `--seed 17`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from itertools import chain

from tests.simulation.playing import Tally, every_kill, replay, worlds
from tests.simulation.world import Outcome, play
from tests.support.counting import count


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
    played = _played(worlds(range(int(first), int(last))), options.first)
    count("worlds", **played.counts, seeds=options.seeds)
    print(played)
    if options.kills:
        killed = _played(chain.from_iterable(map(every_kill, range(options.kills))), options.first)
        count("worlds, killed at each step", **killed.counts, seeds=f"0:{options.kills}")
        print(killed)
        played.failed += killed.failed
    return bool(played.failed)


def _played(outcomes: Iterable[Outcome], only_first: bool) -> Tally:
    """Their sum, up to the first with a violation if that is wanted; a line says how to play such a one again."""
    tally = Tally()
    for outcome in outcomes:
        tally.add(outcome)
        if outcome.violations:
            print(f"{replay(outcome.seed, outcome.kill_at)}\n  " + "\n  ".join(outcome.violations[:5]), flush=True)
            if only_first:
                break
    return tally


if __name__ == "__main__":
    sys.exit(main())

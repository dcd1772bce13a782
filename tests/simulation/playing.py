"""Many worlds, played in children that just exit, and what came of them."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.simulation.world import Outcome, play

_CHUNK = 50


@dataclass
class Tally:
    """The sum of some worlds; `failed` are those in which something happened that may not."""

    worlds: int = 0
    acknowledged: int = 0
    requests: int = 0
    bodies: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.worlds += 1
        self.acknowledged += outcome.acknowledged
        self.requests += outcome.requests
        self.bodies += outcome.bodies
        self.happened += outcome.happened
        if outcome.violations:
            self.failed.append(outcome)

    @property
    def counts(self) -> dict[str, int]:
        """As tests.support.counting counts them."""
        return {"runs": self.worlds, "acknowledged": self.acknowledged, "violations": len(self.failed)}

    def __str__(self) -> str:
        worlds = f"{self.worlds} worlds, {self.acknowledged} events acknowledged"
        return f"{worlds}, {self.requests} requests, {self.bodies} bodies, {len(self.failed)} with violations"


def worlds(seeds: Iterable[int]) -> Iterator[Outcome]:
    """The outcome of each seed, in order."""
    yield from _played([(seed, None) for seed in seeds])


def every_kill(seed: int) -> Iterator[Outcome]:
    """The world of this seed without any other trouble, its process killed at each of its steps in turn."""
    [whole] = _played([(seed, 1 << 60)])
    yield from _played([(seed, step) for step in range(whole.steps)])


def replay(seed: int, kill_at: int | None = None) -> str:
    """The command that plays one world again."""
    return f"python -m tests.simulation --seed {seed}" + ("" if kill_at is None else f" --kill-at {kill_at}")


def _played(worlds: list[tuple[int, int | None]]) -> Iterator[Outcome]:
    chunks = [worlds[start : start + _CHUNK] for start in range(0, len(worlds), _CHUNK)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.simulation.world"])
    with context.Pool(os.cpu_count(), maxtasksperchild=4) as pool:
        for outcomes in pool.imap(_play_all, chunks):
            yield from outcomes


def _play_all(worlds: list[tuple[int, int | None]]) -> list[Outcome]:
    logging.disable(logging.CRITICAL)  # of what goes wrong there on purpose
    gc.disable()  # this process ends soon, and there is nearly nothing to collect
    return [play(seed, kill_at) for seed, kill_at in worlds]

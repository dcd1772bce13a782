"""What the benchmarks of checkpoints share: a session of which the store alone is asked, and medians taken in turns."""

import random
import statistics
import string
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from app.session.batch import Batch, Header, chain
from app.session.ownership import Epoch, Owner
from app.session.persistence import SessionPersistence
from app.session.record import SessionEvent

LENGTHS = (10, 1_000, 100_000)
ROUNDS, BLOCK, WARM_UP = 60, 20, 10

Call = Callable[[], Awaitable[object]]
Case = tuple[Callable[[], object], Call]
"""A preparation that is not timed, and the call that is."""

_chance = random.Random(0)
BODIES = ["".join(_chance.choices(string.ascii_letters, k=960)) for _ in range(100)]
"""Texts that make an event of 1 KB each; letters, so that a long one can be compressed a little."""


class Appending:
    """A session of which the store alone is asked, with batches made before: of `size` events of 1 KB each."""

    def __init__(self, store: SessionPersistence, session_id: str, size: int = 1) -> None:
        self._store = store
        self._size = size
        self._header = Header.make(session_id, 0)
        self._epoch = Epoch.first(Owner("bench"))
        self._head = self._header.digest
        self._seq = 0
        self._batches: deque[Batch] = deque()

    def prepare(self, batches: int = 1) -> None:
        """Make the next batches. Their digests are left to the store, which has to compute them for a session too."""
        for _ in range(batches):
            self.make(self._size)

    def make(self, size: int, text: str | None = None) -> None:
        seqs = range(self._seq, self._seq + size)
        texts = (f'{{"text":"{text or BODIES[n % len(BODIES)]}"}}' for n in seqs)
        events = tuple(SessionEvent(n, n, "bench/note", body, True) for n, body in zip(seqs, texts, strict=True))
        self._batches.append(Batch(events, self._head, "request"))
        self._head, self._seq = chain(self._head, events), seqs.stop

    async def append(self) -> None:
        """Store the next one."""
        await self._store.append(self._header, self._batches.popleft(), self._epoch)


async def in_turns(cases: dict[str, Case]) -> dict[str, float]:
    """Median seconds of each call, after its untimed preparation: in blocks, so that a drift is everybody's."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for n in range(ROUNDS + WARM_UP):
        for name, (prepare, call) in cases.items():
            for _ in range(BLOCK):
                prepare()
                start = time.perf_counter()
                await call()
                if n >= WARM_UP:
                    times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of as many cells as there are columns."""
    print(f"\n{title}")
    for row in (columns, *rows):
        print(f"  {row[0]:<18}" + "".join(f"{cell:>17}" for cell in row[1:]))


def us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us"


async def flatness(store: SessionPersistence) -> None:
    """Whether an append knows how long its session is. Nothing here holds the log: a copy of it would be timed too."""
    cases: dict[str, Case] = {}
    for length in LENGTHS:
        appending = Appending(store, f"long {length}")
        for filled in range(0, length, 5_000):
            appending.make(min(5_000, length - filled), "x" * 100)
            await appending.append()
        cases[f"{length:,}"] = appending.prepare, appending.append
    found = await in_turns(cases)
    first = found[f"{LENGTHS[0]:,}"]
    rows = [(name, us(seconds), f"{seconds / first:.2f} x") for name, seconds in found.items()]
    table(f"one append on {store.kind}, by its session's length", ("events before it", "append", "against first"), rows)

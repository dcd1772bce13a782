"""Several real processes want the same sessions, are stopped and killed, and a checker reads what they wrote down."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

from app.session.persistence import StoredLog
from tests.crash import ledger
from tests.crash.killing import FORKS
from tests.crash.ledger import Note
from tests.crash.working import LEASE_S, Work, Worker, main
from tests.simulation.checking import Known, violations
from tests.support.counting import SEED, amount, count
from tests.support.stores import KINDS, Kind, Place

ROUNDS = amount("WORKER_ROUNDS", 25)
WORKERS = 4
SESSIONS = ("s1", "s2", "s3")


class Hired:
    """A process that works. `stopped_until` is the time at which a stopped one goes on."""

    def __init__(self, work: Work) -> None:
        self.stopped_until: float | None = None
        self._process = FORKS.Process(target=main, args=(work,), daemon=True)
        self._process.start()

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError):  # it has died by itself: `kill` will tell
            os.kill(self._process.pid, number)

    def kill(self) -> bool:
        """SIGKILL, and wait until it is dead. Whether that was what it died of."""
        self._process.kill()
        self._process.join()
        is_killed = self._process.exitcode == -signal.SIGKILL
        self._process.close()
        return is_killed


class Crowd:
    """The workers at one place, and what befalls them. Left, they are dead.

    The seed says what befalls whom, and what each does; when is up to the machine, so it need not fail twice.
    """

    def __init__(self, place: Place, seed: int, *, ignore_epochs: bool = False) -> None:
        self.done = Counter[str]()
        self._place = place
        self._seed = seed
        self._ignore_epochs = ignore_epochs
        self._lots = random.Random(seed)
        self._works: list[Work] = []
        self._hired: list[Hired] = []

    def __enter__(self) -> Self:
        self._hired += [self._hire() for _ in range(WORKERS)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for hired in self._hired:
            self._kill(hired)

    def trouble(self, rounds: int) -> None:
        """In each round, when they have written down some more, kill one and hire another, or stop one for longer than
        its lease.
        """
        for _ in range(rounds):
            self._await_more(self._lots.randint(2_000, 40_000))
            place = self._lots.randrange(WORKERS)
            if self._lots.random() < 0.4:
                self._kill(self._hired[place])
                self._hired[place] = self._hire()
            elif self._hired[place].stopped_until is None:
                self._hired[place].signal(signal.SIGSTOP)
                self._hired[place].stopped_until = time.monotonic() + LEASE_S * self._lots.uniform(1.1, 2)
                self.done["pauses"] += 1

    def notes(self) -> list[Note]:
        """All that was written down so far, by one worker after the other."""
        return [note for work in self._works for note in ledger.read(work.journal)]

    async def finish(self) -> dict[str, StoredLog | None]:
        """In peace: the last worker finishes each session."""
        worker = Worker(self._work("the last"))
        return {session_id: await worker.finish(session_id) for session_id in SESSIONS}

    def _work(self, name: str) -> Work:
        self._works.append(Work(name, self._seed, self._place.words, SESSIONS, self._ignore_epochs))
        return self._works[-1]

    def _hire(self) -> Hired:
        return Hired(self._work(f"worker {len(self._works) + 1}"))

    def _kill(self, hired: Hired) -> None:
        self.done["kills" if hired.kill() else "deaths of their own"] += 1

    def _await_more(self, bytes: int) -> None:
        """Wait until the journals have grown by so much; meanwhile those go on that were stopped for long enough."""
        expected, deadline = self._written() + bytes, time.monotonic() + 60
        while self._written() < expected:
            now = time.monotonic()
            assert now < deadline, f"nobody gets on any more, seed {self._seed}: {self.notes()[-3:]}"
            for hired in self._hired:
                if hired.stopped_until is not None and hired.stopped_until < now:
                    hired.stopped_until = None
                    hired.signal(signal.SIGCONT)
            time.sleep(0.005)

    def _written(self) -> int:
        return sum(work.journal.stat().st_size for work in self._works if work.journal.exists())


def found(session_id: str, notes: Sequence[Note], log: StoredLog | None) -> list[str]:
    """What may not have happened to a session, by all that was written down and by its log at the end."""
    own = [note for note in notes if note.details.get("session") == session_id]
    acknowledged: dict[int, str] = {}
    said: list[str] = []
    for note in _all(own, "acknowledged"):
        for seq, line in enumerate(note["lines"], start=note["seq"]):
            if acknowledged.setdefault(seq, line) != line:
                said.append(f"two events of seq {seq} were acknowledged")
    known = Known(
        acknowledged,
        _refused(own),
        [note["message_id"] for note in _all(own, "promised")],
        Counter(note["call_id"] for note in _all(own, "entered")),
        Counter(note["call_id"] for note in _all(own, "acted")),
    )
    said += [
        f"a batch was refused by {note['code']}, though its epoch's writer was alone"
        for note in _all(own, "refused")
        if note["code"] not in ("SESSION_FENCED", "SESSION_EXISTS")
    ]
    return [f"{session_id}: {sentence}" for sentence in [*said, *_claims(own, log), *violations(known, log)]]


def _refused(own: Sequence[Note]) -> set[bytes]:
    """The digests of batches that are not stored: each time they were sent they were refused."""
    sent, refused = (Counter(note["digest"] for note in _all(own, what)) for what in ("sent", "refused"))
    return {bytes.fromhex(digest) for digest, times in refused.items() if times == sent[digest]}


def _unknown(notes: Sequence[Note]) -> int:
    """How many batches were sent and never heard of."""
    sent, *heard = ({note["digest"] for note in _all(notes, what)} for what in ("sent", "acknowledged", "refused"))
    return len(sent.difference(*heard))


def _claims(own: Sequence[Note], log: StoredLog | None) -> Iterator[str]:
    """Epochs follow each other in the order of the log, each proved by one token."""
    tokens: dict[int, str] = {}
    spans: list[tuple[int, int, int]] = []
    heads = {end.digest.hex() for end in log.ends} if log is not None else set()
    for note in [*_all(own, "claimed"), *_all(own, "acknowledged")]:
        epoch, seq = note["epoch"], note["seq"]
        spans.append((epoch, seq, seq + len(note.get("lines", ()))))
        if tokens.setdefault(epoch, note["token"]) != note["token"]:
            yield f"epoch {epoch} was given twice"
        if seq and note["head"] not in heads:
            yield f"what epoch {epoch} found before seq {seq} is not how the log begins"
    for (before, _, end), (epoch, seq, _) in pairwise(sorted(spans)):
        if seq < end:
            yield f"epoch {before} wrote up to seq {end}, and epoch {epoch} wrote at seq {seq}"


def _all(notes: Sequence[Note], what: str) -> list[dict[str, Any]]:
    return [note.details for note in notes if note.what == what]


async def _work_through(
    place: Place, seed: int, rounds: int, *, ignore_epochs: bool = False
) -> tuple[Crowd, list[str]]:
    """All of it: trouble, peace, and what was found."""
    began = time.monotonic()
    with Crowd(place, seed, ignore_epochs=ignore_epochs) as crowd:
        crowd.trouble(rounds)
    logs = await crowd.finish()
    notes = crowd.notes()
    said = [note.details["error"] for note in notes if note.what == "failed"]
    said += [sentence for session_id, log in logs.items() for sentence in found(session_id, notes, log)]
    crowd.done.update(note.what for note in notes)
    crowd.done["unknown"] = _unknown(notes)
    crowd.done["events"] = sum(len(note.details["lines"]) for note in notes if note.what == "acknowledged")
    seconds = time.monotonic() - began
    print(
        f"{place.kind.name}, seed {seed}: {rounds} rounds, {dict(crowd.done)}, {len(said)} violations, {seconds:.1f} s"
    )
    return crowd, said


async def test_whatever_befalls_the_workers_nothing_happens_that_may_not(durable_place: Place):
    """What was acknowledged is kept, what was refused is nowhere, a body runs once, epochs grow, every turn ends."""
    crowd, said = await _work_through(durable_place, SEED, ROUNDS)
    name, events = f"workers killed and paused, {durable_place.kind.name}", crowd.done["events"]
    count(name, runs=ROUNDS, acknowledged=events, violations=len(said), seeds=str(SEED))
    assert said == [], f"seed {SEED}"
    assert crowd.done["deaths of their own"] == 0
    assert crowd.done["events"] > 10 * ROUNDS  # or nothing much happened at all
    assert all(crowd.done[what] for what in ("kills", "pauses", "acted", "promised", "refused")), crowd.done


async def test_workers_that_ignore_epochs_are_found_out(new_place: Callable[[Kind], Place]):
    """The teeth: a store that takes batches, and renews leases, for an epoch that has ended."""
    _, said = await _work_through(
        new_place(next(kind for kind in KINDS if kind.name == "jsonl")), SEED, 30, ignore_epochs=True
    )
    assert any(sentence.startswith(SESSIONS) and "epoch" in sentence for sentence in said)

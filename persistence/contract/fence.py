"""Fence: two processes want one session, and only the newest claim writes, whatever an old one was about to do."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from app.session.errors import SessionDeleted, SessionFenced, SessionNotFound
from app.session.persistence import SessionPersistence
from app.session.verification import verify
from persistence.contract.base import Operation, Stores
from persistence.contract.crash import hear_stored, read
from persistence.contract.processes import AmongProcesses, Line, OtherProcess
from persistence.contract.samples import LONG, Writer, messages, owner
from persistence.contract.telling import Known, draw, send, take

PATIENCE_S = 0.2
"""How long a stopped process is let stand in the way, as it may hold a lock of the store."""
MANY = 300
"""Batches after which a process gives up waiting to be refused."""


async def write_until_refused(store: SessionPersistence, line: Line, session_id: str, seed: str, waits: bool) -> None:
    """Write, with pauses, until that is refused; then tell what else is. `waits`: for a word before one write."""
    lots = random.Random(seed)  # noqa: S311  # a schedule, no secret
    writer = await take(store, line, session_id)
    refusals: list[type[Exception]] = []
    last = lots.randint(1, 10)
    try:
        for n in range(MANY):
            batch = draw(writer, lots)
            if waits and n == last:
                line.say("waits")
                await line.wait_for_word()
            await send(writer, line, batch)
            await asyncio.sleep(lots.expovariate(300))
    except (SessionFenced, SessionNotFound) as refusal:
        refusals.append(type(refusal))
    attempts: list[Operation] = [
        lambda: store.append(writer.header, batch, writer.epoch),
        lambda: store.renew(session_id, writer.epoch),
        lambda: store.release(session_id, writer.epoch),
    ]
    for attempt in attempts:
        try:
            await attempt()
        except (SessionFenced, SessionNotFound) as refusal:
            refusals.append(type(refusal))
    line.say("refused", session_id, refusals)


async def take_in_turns(store: SessionPersistence, line: Line, times: int) -> None:
    """Take session "s" that often by force, and write to it until somebody else has taken it, three batches at most."""
    line.say("ready")
    await line.wait_for_word()
    for _ in range(times):
        epoch, log = await store.acquire("s", owner("one of two"), force=True)
        line.say("claimed", epoch.number)
        writer = Writer(store, verify(log, {})[0], epoch, log.head, list(log.events))
        try:
            for _ in range(3):
                batch = await writer.write(events=messages(writer.seq, 2, str(epoch.number)))
                line.say("stored", batch.digest)
                await asyncio.sleep(0)
        except SessionFenced:
            pass


@contextmanager
def patience(process: OtherProcess) -> Iterator[None]:
    """While inside, a stopped process that is still waited for after a moment goes on: from a thread, as the store may
    make the event loop wait.
    """
    timer = threading.Timer(PATIENCE_S, process.go_on)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


class FenceContract(AmongProcesses):
    """Epochs rise, and an old one can do nothing: not even what its process had begun before it was stopped.

    `stops` is how often a process is stopped; `seed` draws when, and what it writes.
    """

    stops: ClassVar[int] = 8

    @pytest.mark.parametrize("waits", [True, False], ids=["before a write", "anywhere"])
    async def test_whoever_was_stopped_and_is_taken_over_writes_nothing_more(
        self, stores: Stores, elsewhere: Callable[..., OtherProcess], waits: bool
    ) -> None:
        """OWN-04, ST-15: it goes on, and can neither append nor renew nor release; what the new owner wrote stands."""
        lots = random.Random(f"fence {self.seed}")  # noqa: S311  # a schedule, no secret
        store = await stores.open()
        known = Known("s")
        wrong: list[str] = []
        runs = 0
        while runs < self.stops and not wrong:
            async with elsewhere(write_until_refused, "s", f"{self.seed} {runs}", waits) as process:
                heard = await hear_until_it_stands(process, lots, waits=waits)
                with patience(process):
                    epoch, log = await store.acquire("s", owner("the new one"), force=True)
                    new = Writer(store, known.header, epoch, log.head, list(log.events))
                    own = [await new.write(n) for n in (1, 2)]
                process.go_on()
                if waits:
                    process.say()
                heard += await process.hear_rest()
            runs += 1
            *told, (_, _, refusals) = heard
            wrong += [sentence for words in told for sentence in known.hear(words)]
            wrong += known.compare(log) + known.claimed(epoch.number)
            for batch in own:
                known.stored(batch)
            left = await read(store, "s")
            wrong += known.compare(left)
            if refusals != [SessionFenced] * 4:
                wrong.append(f"the old owner was refused by {refusals}")
            if left is not None and (left.holder.owner != "the new one" or left.holder.lease_left_s < LONG / 2):
                wrong.append(f"the old owner changed the claim to {left.holder}")
        self.tally("fenced", runs=runs, acknowledged=known.acknowledged, violations=len(wrong))
        assert wrong == [], "\n".join(wrong)

    @pytest.mark.parametrize("waits", [True, False], ids=["before a write", "anywhere"])
    async def test_a_deleted_session_takes_nothing_from_whoever_was_stopped(
        self, stores: Stores, elsewhere: Callable[..., OtherProcess], waits: bool
    ) -> None:
        """DEL-02: nor is there anything of it afterwards."""
        lots = random.Random(f"deleted {self.seed}")  # noqa: S311  # a schedule, no secret
        store = await stores.open()
        for session_id in ("s1", "s2"):
            async with elsewhere(write_until_refused, session_id, f"{self.seed}", waits) as process:
                await hear_until_it_stands(process, lots, waits=waits)
                with patience(process):
                    await store.delete(session_id)
                process.go_on()
                if waits:
                    process.say()
                *_, (_, _, refusals) = await process.hear_rest()
            assert refusals == [SessionDeleted] * 4
            with pytest.raises(SessionDeleted):
                await store.read(session_id)
            with pytest.raises(SessionDeleted):
                await store.check_free(session_id)
        assert await store.list(10) == []

    async def test_of_two_who_take_it_from_each_other_the_newest_claim_writes(
        self, stores: Stores, elsewhere: Callable[..., OtherProcess]
    ) -> None:
        """APD-07: each claim has a number of its own, in order, and what was written stands in their order."""
        times = 5 * self.stops
        store = await stores.open()
        await Writer.new(store, "s").write()
        async with elsewhere(take_in_turns, times) as one, elsewhere(take_in_turns, times) as other:
            for process in (one, other):
                assert await process.hear() == ("ready",)
            for process in (one, other):
                process.say()
            heard = [await process.hear_rest() for process in (one, other)]
        claims = [[words[1] for words in told if words[0] == "claimed"] for told in heard]
        given = [epoch for epochs in claims for epoch in epochs]
        stored = [words[1] for told in heard for words in told if words[0] == "stored"]
        log = await store.read("s")
        verify(log, {})
        wrote = [int(event.data["message"]["content"]) for event in log.events[1:]]
        kept = Counter(end.digest for end in log.ends[1:])
        wrong = [f"what epoch {a} wrote stands before what {b} wrote" for a, b in pairwise(wrote) if a > b]
        wrong += [f"epoch {epoch} wrote, and was given to nobody" for epoch in {*wrote} - {*given}]
        wrong += [f"one process was given {a}, then {b}" for epochs in claims for a, b in pairwise(epochs) if a >= b]
        if sorted(given) != list(range(2, 2 + 2 * times)):
            wrong.append(f"epochs {claims} were given out")
        if Counter(stored) != kept:
            wrong.append(f"{len(stored)} batches were acknowledged, {kept.total()} are there")
        self.tally("fenced", runs=2 * times, acknowledged=2 * len(stored), violations=len(wrong))
        assert wrong == [], "\n".join(wrong)


async def hear_until_it_stands(process: OtherProcess, lots: random.Random, *, waits: bool) -> list[tuple[Any, ...]]:
    """What a process tells until it is stopped: before a write, or somewhere."""
    if waits:
        heard = await process.hear_until("waits")
    else:
        heard = await hear_stored(process, lots.randint(1, 10))
        await asyncio.sleep(lots.expovariate(300))
    process.stop()
    return heard

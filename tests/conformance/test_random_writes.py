"""Whatever callers and the store do, in whatever order: one write at a time, nothing lost, nothing twice, no lie."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from app.session.batch import Batch, Header
from app.session.drain import DrainLimits
from app.session.errors import FlushTimeout, PersistenceUnavailable
from app.session.ownership import Epoch
from tests.support.checkpoints import pend
from tests.support.faults import FailAfter, FailBefore
from tests.support.house import House
from tests.support.timed import TimedPersistence
from tests.support.virtual_time import run
from tests.support.watching import unhandled_errors

ERRORS = (PersistenceUnavailable("s", "disk unavailable"), OSError("reset"), RuntimeError("what?"))


class Moody(TimedPersistence):
    """A store that is slow or fails at random until it is calm, and minds that one write runs at a time."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.is_calm = False
        self._random = random
        self._writing = 0

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        self._writing += 1
        assert self._writing == 1
        try:
            if not self.is_calm and self._random.random() < 0.7:
                self.next("append", Mood(self._random))
            await super().append(header, batch, epoch)
        finally:
            self._writing -= 1


class Mood:
    """Late, before it does anything or after; and perhaps failing then."""

    def __init__(self, random: Random) -> None:
        self._before, self._after = (random.choice([0, 0, 0.05, 0.3, 1.5]) for _ in range(2))
        self._fault = random.choice([None, None, FailBefore, FailAfter])
        self._error = random.choice(ERRORS)

    async def around(self, call: Callable[[], Awaitable[Any]]) -> Any:
        await asyncio.sleep(self._before)
        result = await (call() if self._fault is None else self._fault(self._error).around(call))
        await asyncio.sleep(self._after)
        return result


async def live_through(seed: int) -> None:
    random = Random(seed)
    reported = unhandled_errors()
    store = Moody(random)
    limits = DrainLimits(
        write_behind_ms=random.choice([None, 100]), flush_timeout_ms=1000, max_batch_events=random.choice([2, 5000])
    )
    house = House(persistence=store, drain_limits=limits)
    async with house.opened():
        session = await house.sessions.create("s")
        flushes: list[asyncio.Task[None]] = []

        async def flush() -> None:
            mark = len(session)
            try:
                await house.sessions.flush(session)
            except (FlushTimeout, PersistenceUnavailable, OSError, RuntimeError):
                return
            stored = await store.inner.read_from("s", 0) if mark else []
            assert len(stored) >= mark

        for _ in range(40):
            for _ in range(random.randrange(4)):
                pend(session, f"m{len(session)}")
            if random.random() < 0.5:
                flushes.append(asyncio.create_task(flush()))
            if flushes and random.random() < 0.2:
                random.choice(flushes).cancel()
            await asyncio.sleep(random.choice([0, 0, 0.001, 0.05, 0.1, 0.5, 1.2]))
            assert session.durable <= len(await store.inner.read_from("s", 0) if await store.inner.list(1) else ())
        store.is_calm = True
        store.heal()
        for result in await asyncio.gather(*flushes, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError)
        await asyncio.sleep(10)  # what is slow has answered by then
        await house.sessions.release(session)
        log = await store.inner.read("s")
        assert log.events == session.events
        assert log.holder.owner is None
        calls = len(store.log)
        await asyncio.sleep(10)
        assert len(store.log) == calls
    del flushes
    gc.collect()
    assert reported == []


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_a_session_over_a_moody_store(start: int):
    """Two hundred lives of a session: with and without a window, in small batches and large ones."""
    for seed in range(start, start + 50):
        run(live_through(seed))

"""When a session's events reach its store, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from app.session.batch import Batch, Header
from app.session.drain import DrainLimits
from app.session.ownership import Epoch
from app.session.session import Session
from persistence.memory import MemoryPersistence
from tests.support.faults import FaultyPersistence
from tests.support.house import House


class TimedPersistence(FaultyPersistence):
    """Sessions in memory; `sent` is when each append came in, in milliseconds of the loop's time, and its seqs."""

    def __init__(self) -> None:
        super().__init__(MemoryPersistence(lease_clock=lambda: asyncio.get_running_loop().time()))
        self.sent: list[tuple[int, list[int]]] = []

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        self.sent.append((round(asyncio.get_running_loop().time() * 1000), [event.seq for event in batch.events]))
        await super().append(header, batch, epoch)


class Timeline:
    """A live session `s`, the house it lives in, and the store that notes when it is written."""

    def __init__(self, house: House, store: TimedPersistence, session: Session) -> None:
        self.house = house
        self.store = store
        self.session = session

    @property
    def sent(self) -> list[tuple[int, list[int]]]:
        return self.store.sent

    async def flush(self) -> None:
        await self.house.sessions.flush(self.session)

    async def stored(self) -> bool:
        """Whether the store holds exactly what the live log does."""
        return (await self.store.inner.read("s")).events == self.session.events


@asynccontextmanager
async def timeline(
    write_behind_ms: int | None = 200, tools: Sequence[Any] = (), **limits: Any
) -> AsyncIterator[Timeline]:
    """A new session at 0 ms, with this window; released at the end unless it is lost or gone by then."""
    store = TimedPersistence()
    house = House((), tools, store, drain_limits=DrainLimits(write_behind_ms=write_behind_ms, **limits))
    async with house.opened():
        session = await house.sessions.create("s")
        yield Timeline(house, store, session)
        if house.sessions.get("s") is session and not session.is_lost:
            store.heal()
            await house.sessions.release(session)


async def until_ms(time_ms: float) -> None:
    """Return at exactly that time of the loop, when what is due by then has happened."""
    await asyncio.sleep(time_ms / 1000 - asyncio.get_running_loop().time())
    for _ in range(20):  # rounds of the loop: more than any write to memory takes, and no time goes by
        await asyncio.sleep(0)

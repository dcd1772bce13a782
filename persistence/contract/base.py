"""What a backend tells the contract suite about itself, and the stores that a test opens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import pytest
import pytest_asyncio

from app.session.errors import SessionNotFound
from app.session.persistence import SessionPersistence

Operation: TypeAlias = Callable[[], Awaitable[object]]
FaultPoint: TypeAlias = Literal["at the third event", "at the commit"]


class Stores:
    """The stores of one test, all on the same data, each as another process would have it."""

    def __init__(self, make: Callable[[], SessionPersistence]) -> None:
        self._make = make
        self._open: list[SessionPersistence] = []

    async def open(self) -> SessionPersistence:
        """One more store, open."""
        store = self._make()
        await store.open()
        self._open.append(store)
        return store

    async def close(self) -> None:
        """Close every one of them."""
        while self._open:
            await self._open.pop().close()

    async def reopen(self) -> SessionPersistence:
        """Close every one of them, as if all processes had ended; then one more."""
        await self.close()
        return await self.open()


@pytest.mark.asyncio
class Contract:
    """A topic of the contract. A subclass says what the backend is.

    `seed` is what is drawn by where chance decides, so that a longer run does not try again what was tried before.
    """

    durable: ClassVar[bool]
    seed: ClassVar[int] = 0

    def make_store(self, folder: Path) -> SessionPersistence:
        """A store, not open yet, of the data in `folder`. Called again in a test: another store of the same data."""
        raise NotImplementedError

    def failing(self, store: SessionPersistence, point: FaultPoint) -> AbstractContextManager[None]:
        """While inside, every append through `store` fails at that point, as a full disk or a lost server makes it."""
        raise NotImplementedError

    def tally(self, what: str, *, runs: int, acknowledged: int, violations: int) -> None:
        """Told, before it passes or fails, how often a test has killed, stopped or read, and of how many events."""

    @pytest_asyncio.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[Stores]:
        stores = Stores(lambda: self.make_store(tmp_path))
        yield stores
        await stores.close()

    @pytest_asyncio.fixture
    async def store(self, stores: Stores) -> SessionPersistence:
        return await stores.open()


async def contents(store: SessionPersistence) -> dict[str, Any]:
    """Everything that a store shows but the seconds that leases have left: it is equal only if nothing changed."""
    shown: dict[str, Any] = {}
    for row in await store.list(1000):
        try:
            log = await store.read(row.session_id)
        except SessionNotFound:  # deleted since it was listed
            continue
        holder = log.holder.epoch, log.holder.owner
        kept = log.header_text, log.events, log.ends, log.next_seq, log.head
        shown[row.session_id] = kept, holder, (row.created_at, row.next_seq, row.last_write, row.title)
    return shown

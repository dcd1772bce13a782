"""The contract of app.session.persistence, kept with a file of JSON lines for each session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from app.session.batch import Batch, Header
from app.session.errors import NoStore, PersistenceUnavailable, StoreUnusable
from app.session.health import Finding
from app.session.identifiers import check_id
from app.session.ownership import Epoch, Owner
from app.session.persistence import Repair, SessionRow, StoredLog
from app.session.record import SessionEvent
from persistence import place, rules
from persistence.jsonl import errors, reading, writing
from persistence.jsonl.directory import Directory, is_name, name_of
from persistence.jsonl.listing import Listing
from persistence.jsonl.looking import look
from persistence.worker import Worker

T = TypeVar("T")

_WRITERS, _READERS = 8, 2


class JsonlPersistence:
    """Every session in a file of its own in `directory`, which is created when it is missing, for its owner alone.

    Sessions are written side by side: none waits for the disk on behalf of another, as long as there are threads.
    Reading has its own. `busy_timeout_s` is how long a call waits for somebody else who writes the same session.
    """

    kind = "jsonl"
    durable = True

    def __init__(self, directory: Path, *, busy_timeout_s: float = 10.0) -> None:
        self._directory = Directory(directory, busy_timeout_s)
        self._workers: list[Worker] = []
        self._listing = Listing()
        self._places = reading.Places()
        self._changing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<JsonlPersistence {self._directory.path}{'' if self._workers else ', not open'}>"

    async def open(self) -> None:
        """See the contract. Opening what is open does nothing."""
        async with self._changing:
            if not self._workers:
                workers = [Worker(f"jsonl-{n}") for n in range(_WRITERS + _READERS)]
                await workers[0].start(self._directory.open)
                for worker in workers[1:]:
                    await worker.start()
                self._workers = workers

    async def close(self) -> None:
        """See the contract."""
        async with self._changing:
            if self._workers:
                first, *others = self._workers
                self._workers = []
                for worker in others:
                    await worker.stop()
                await first.stop(self._directory.close)

    async def missing(self) -> StoreUnusable | None:
        """See app.session.health."""
        path = self._directory.path
        return NoStore(str(path), "`beforehand run` makes one") if place.is_empty(path) else None

    async def examine(self) -> AsyncIterator[Finding]:
        """See app.session.health. Opening looks at the locks."""
        path = self._directory.path
        for finding in await asyncio.to_thread(lambda: list(place.survey("directory", path, path.glob("*.jsonl")))):
            yield finding

    def file_of(self, session_id: str) -> Path:
        """See app.session.health."""
        return self._directory.path / (session_id if is_name(session_id) else name_of(session_id))

    async def check_free(self, session_id: str) -> None:
        """See the contract."""

        def look_at_it() -> rules.Found:
            with self._directory.locked(session_id, exclusive=False) as file:
                return writing.found(look(session_id, file))

        check_id(session_id)
        rules.check_free(await self._read(session_id, look_at_it), session_id)

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        """See the contract. One write, and one sync of the data."""
        check_id(header.id)
        batch.check()
        await self._write(header.id, lambda: writing.append(self._directory, header, batch, epoch))

    async def acquire(
        self, session_id: str, owner: Owner, *, force: bool = False, repair: Repair | None = None
    ) -> tuple[Epoch, StoredLog]:
        """See the contract. The session is locked from the first look to the last byte; other sessions are not."""
        check_id(session_id)
        return await self._read(
            session_id, lambda: writing.acquire(self._directory, session_id, owner, force=force, repair=repair)
        )

    async def renew(self, session_id: str, epoch: Epoch) -> None:
        """See the contract."""
        check_id(session_id)
        await self._write(session_id, lambda: writing.renew(self._directory, session_id, epoch))

    async def release(self, session_id: str, epoch: Epoch) -> None:
        """See the contract."""
        check_id(session_id)
        await self._write(session_id, lambda: writing.release(self._directory, session_id, epoch))

    async def read(self, session_id: str, *, before: int | None = None) -> StoredLog:
        """See the contract."""
        check_id(session_id)
        return await self._read(session_id, lambda: reading.read(self._directory, session_id, before))

    async def read_from(self, session_id: str, seq: int, limit: int = 1000) -> Sequence[SessionEvent]:
        """See the contract."""
        check_id(session_id)
        rules.check_page(limit, seq)
        return await self._read(
            session_id, lambda: reading.read_from(self._directory, self._places, session_id, seq, limit)
        )

    async def list(self, limit: int, after: tuple[int, str] | None = None) -> Sequence[SessionRow]:
        """See the contract."""
        rules.check_page(limit)
        if after is not None:
            check_id(after[1])
        return await self._read("", lambda: self._listing.page(self._directory, limit, after))

    async def delete(self, session_id: str) -> None:
        """See the contract."""
        check_id(session_id)
        await self._write(session_id, lambda: writing.delete(self._directory, session_id))

    # ---------------------------------------------------------------------------------------- inside

    async def _write(self, session_id: str, job: Callable[[], T]) -> T:
        return await self._run(session_id, job, 0, _WRITERS)

    async def _read(self, session_id: str, job: Callable[[], T]) -> T:
        return await self._run(session_id, job, _WRITERS, _READERS)

    async def _run(self, session_id: str, job: Callable[[], T], first: int, count: int) -> T:
        """A session always has the same thread, so what is asked of it is done in that order."""
        if not self._workers:
            raise PersistenceUnavailable(session_id, "the store is not open")
        try:
            return await self._workers[first + hash(session_id) % count].ask(job)
        except OSError as error:
            raise errors.meaning(error, session_id) from error

"""The contract of app.session.persistence, kept with one SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from app.session.batch import Batch, Header
from app.session.errors import PersistenceUnavailable, StoreUnusable
from app.session.health import Finding
from app.session.identifiers import check_id
from app.session.ownership import Epoch, Owner
from app.session.persistence import Repair, SessionRow, StoredLog
from app.session.record import SessionEvent
from persistence import rules
from persistence.sqlite import file, reading, writing
from persistence.sqlite.database import Database
from persistence.sqlite.worker import Worker

T = TypeVar("T")


class SqlitePersistence:
    """Every session in the file at `path`, which is created when it is missing, for its owner alone.

    One thread writes, one reads: reading a long log holds up no checkpoint. `busy_timeout_s` is how long a call waits
    for another process that writes.
    """

    kind = "sqlite"
    durable = True

    def __init__(self, path: Path, *, busy_timeout_s: float = 10.0) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._workers: tuple[Worker, Worker] | None = None
        self._keys = writing.Keys()
        self._changing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<SqlitePersistence {self._path}{'' if self._workers else ', not open'}>"

    async def open(self) -> None:
        """See the contract. Opening what is open does nothing."""
        async with self._changing:
            if self._workers is None:
                writer = Worker("sqlite-writer", Database(self._path, "rw", self._busy_timeout_s))
                reader = Worker("sqlite-reader", Database(self._path, "ro", self._busy_timeout_s))
                await writer.start()
                try:
                    await reader.start()
                except BaseException:  # also when the caller is cancelled: what was started is stopped
                    await writer.stop()
                    raise
                self._workers = writer, reader

    async def close(self) -> None:
        """See the contract. The last process to close folds the -wal file into the database."""
        async with self._changing:
            if self._workers is not None:
                writer, reader = self._workers
                self._workers = None
                try:
                    await reader.stop()
                finally:
                    await writer.stop()

    async def missing(self) -> StoreUnusable | None:
        """See app.session.health."""
        return await asyncio.to_thread(file.missing, self._path.absolute())

    async def examine(self) -> AsyncIterator[Finding]:
        """See app.session.health."""
        for finding in await asyncio.to_thread(lambda: list(file.examine(self._path.absolute()))):
            yield finding

    async def faults(self) -> Sequence[str]:
        """See app.session.health."""
        return await self._read("", reading.faults)

    async def check_free(self, session_id: str) -> None:
        """See the contract."""
        check_id(session_id)
        _, found = await self._read(session_id, lambda connection: reading.find(connection, session_id))
        rules.check_free(found, session_id)

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        """See the contract. An update of the session's row and an insert for each event, in one synced transaction."""
        check_id(header.id)
        batch.check()
        _ = batch.digest  # the hashing is not to lengthen the transaction
        await self._write(header.id, partial(writing.append, self._keys, header, batch, epoch))

    async def acquire(
        self, session_id: str, owner: Owner, *, force: bool = False, repair: Repair | None = None
    ) -> tuple[Epoch, StoredLog]:
        """See the contract.

        The log is read and `repair` asked before the write lock is taken, which everybody else's checkpoints need too.
        They are asked again under the lock if the session changed in between.
        """

        def look(connection: sqlite3.Connection) -> tuple[rules.Row, StoredLog]:
            key, found = reading.find(connection, session_id)
            row = rules.check_takeable(found, session_id, force=force)
            return row, reading.read_log(connection, session_id, key, row)

        def prepare(row: rules.Row, stored: StoredLog) -> tuple[Epoch, Batch | None]:
            epoch = Epoch.after(row.epoch, owner)
            batch = None if repair is None else repair(stored, epoch)
            rules.check_repair(batch, row)
            return epoch, batch

        def take(connection: sqlite3.Connection) -> tuple[Epoch, StoredLog]:
            key, found = reading.find(connection, session_id)
            now = rules.check_takeable(found, session_id, force=force)
            log, (epoch, batch) = stored, prepared
            if now.stored != row.stored:
                log = reading.read_log(connection, session_id, key, now)
                epoch, batch = prepare(now, log)
            writing.claim(connection, key, now.header_text, epoch, batch)
            return epoch, log

        check_id(session_id)
        row, stored = await self._read(session_id, look)
        prepared = await asyncio.to_thread(prepare, row, stored)
        return await self._write(session_id, take)

    async def renew(self, session_id: str, epoch: Epoch) -> None:
        """See the contract."""
        check_id(session_id)
        await self._write(session_id, partial(writing.renew, session_id, epoch))

    async def release(self, session_id: str, epoch: Epoch) -> None:
        """See the contract."""
        check_id(session_id)
        await self._write(session_id, partial(writing.release, session_id, epoch))

    async def read(self, session_id: str, *, before: int | None = None) -> StoredLog:
        """See the contract."""

        def look(connection: sqlite3.Connection) -> StoredLog:
            key, found = reading.find(connection, session_id)
            return reading.read_log(connection, session_id, key, rules.present(found, session_id), before)

        check_id(session_id)
        return await self._read(session_id, look)

    async def read_from(self, session_id: str, seq: int, limit: int = 1000) -> Sequence[SessionEvent]:
        """See the contract."""

        def look(connection: sqlite3.Connection) -> list[SessionEvent]:
            key, found = reading.find(connection, session_id)
            rules.present(found, session_id)
            return reading.read_events(connection, session_id, key, seq, limit)

        check_id(session_id)
        rules.check_page(limit, seq)
        return await self._read(session_id, look)

    async def list(self, limit: int, after: tuple[int, str] | None = None) -> Sequence[SessionRow]:
        """See the contract."""
        rules.check_page(limit)
        if after is not None:
            check_id(after[1])
        return await self._read("", lambda connection: reading.read_list(connection, limit, after))

    async def delete(self, session_id: str) -> None:
        """See the contract."""
        check_id(session_id)
        await self._write(session_id, partial(writing.delete, session_id))

    async def _write(self, session_id: str, job: Callable[[sqlite3.Connection], T]) -> T:
        return await self._worker(0, session_id).run(session_id, job)

    async def _read(self, session_id: str, job: Callable[[sqlite3.Connection], T]) -> T:
        return await self._worker(1, session_id).run(session_id, job)

    def _worker(self, which: int, session_id: str) -> Worker:
        if self._workers is None:
            raise PersistenceUnavailable(session_id, "the store is not open")
        return self._workers[which]

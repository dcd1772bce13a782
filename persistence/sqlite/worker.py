"""A thread with a database connection of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from persistence import worker
from persistence.sqlite import errors
from persistence.sqlite.database import Database

T = TypeVar("T")


class Worker:
    """Does jobs on a database one after another, in the order in which they were asked for."""

    def __init__(self, name: str, database: Database) -> None:
        self._database = database
        self._thread = worker.Worker(name)

    async def start(self) -> None:
        """Open the database. Raises StoreUnusable; then the thread has ended."""
        await self._thread.start(self._database.open)

    async def run(self, session_id: str, job: Callable[[sqlite3.Connection], T]) -> T:
        """What `job` returns, done in a transaction. Errors of SQLite come as ours, others as they are: all undo it."""
        try:
            return await self._thread.ask(lambda: self._database.run(job))
        except errors.FOREIGN as error:
            raise errors.meaning(error, session_id, "the database") from None

    async def stop(self) -> None:
        """Finish the jobs that were asked for, close the database, end the thread."""
        await self._thread.stop(self._database.close)

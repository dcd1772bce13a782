"""A thread with a database connection of its own, so that no wait for a disk ever stops the event loop.

An executor would do, at twice the cost per job; and it drops a waiting job whose caller was cancelled, while one that
was handed over here is always done, as a whole.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from persistence.sqlite import errors
from persistence.sqlite.database import Database

T = TypeVar("T")
Job: TypeAlias = tuple["asyncio.Future[Any]", Callable[[], object]]


class Worker:
    """Does jobs on a database one after another, in the order in which they were asked for."""

    def __init__(self, name: str, database: Database) -> None:
        self._database = database
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def start(self) -> None:
        """Open the database. Raises StoreUnusable; then the thread has ended."""
        self._thread.start()
        try:
            await self._ask(self._database.open)
        except BaseException:  # also when the caller is cancelled: nobody else can stop it
            await self.stop()
            raise

    async def run(self, session_id: str, job: Callable[[sqlite3.Connection], T]) -> T:
        """What `job` returns, done in a transaction. Errors of SQLite come as ours, others as they are: all undo it."""
        try:
            return await self._ask(lambda: self._database.run(job))
        except errors.FOREIGN as error:
            raise errors.meaning(error, session_id, "the database") from None

    async def stop(self) -> None:
        """Finish the jobs that were asked for, close the database, end the thread."""
        closing = self._ask(self._database.close)
        self._jobs.put(None)
        await closing
        self._thread.join()  # it has nothing left to do

    def _ask(self, work: Callable[[], T]) -> asyncio.Future[T]:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((answer, work))
        return answer

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            answer, work = job
            result: object = None
            failure: BaseException | None = None
            try:
                result = work()
            except BaseException as error:  # whatever it is, it is for the one who asked, not for this thread
                failure = error
            try:
                answer.get_loop().call_soon_threadsafe(_tell, answer, result, failure)
            except RuntimeError:  # that loop has been closed: nobody waits any more
                pass
            del job, answer, work, result, failure  # they are not kept while this waits for the next one


def _tell(answer: asyncio.Future[Any], result: object, failure: BaseException | None) -> None:
    if answer.done():  # its caller was cancelled
        return
    if failure is None:
        answer.set_result(result)
    else:
        answer.set_exception(failure)

"""A thread that waits for disks, so that the event loop never does.

An executor would do, at twice the cost per job; and it drops a waiting job whose caller was cancelled, while one that
was handed over here is always done, as a whole.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Job: TypeAlias = tuple["asyncio.Future[Any]", Callable[[], object]]


class Worker:
    """Does jobs one after another, in the order in which they were asked for. `start` first, `stop` last."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def start(self, opening: Callable[[], object] | None = None) -> None:
        """Begin, with `opening` as the first job. If that raises, so does this, and the thread has ended."""
        self._thread.start()
        if opening is not None:
            try:
                await self.ask(opening)
            except BaseException:  # also when the caller is cancelled: nobody else can stop it
                await self.stop()
                raise

    def ask(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """What `work` will return, or raise, in the thread. It is done whether or not anybody waits for it."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((answer, work))
        return answer

    async def stop(self, closing: Callable[[], object] = lambda: None) -> None:
        """Finish the jobs that were asked for, with `closing` as the last one, and end the thread."""
        closed = self.ask(closing)
        self._jobs.put(None)
        await closed
        self._thread.join()  # it has nothing left to do

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

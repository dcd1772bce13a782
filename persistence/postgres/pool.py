"""A few connections that take turns: made when needed, and either clean or gone when they are given back.

The driver's pool would do, but it asks the server to reset a connection each time, knows one host, and waits for ever
when it is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from app.session.errors import PersistenceUnavailable
from persistence.postgres import errors
from persistence.postgres.connecting import Connection, Connector, Link

READ_WRITE = "begin isolation level read committed"
SNAPSHOT = "begin isolation level repeatable read read only"

_PAUSE_S = 0.1


class Pool:
    """At most `size` connections. `wait_s` is how long a use waits for one to be free and for a server to be there."""

    def __init__(self, connector: Connector, size: int, wait_s: float) -> None:
        self._connector = connector
        self._wait_s = wait_s
        self._size = size
        self._free = asyncio.Semaphore(size)
        self._idle: list[Link] = []
        self._is_closed = False

    @asynccontextmanager
    async def use(self, session_id: str, wait_s: float | None = None) -> AsyncIterator[Link]:
        """A connection for this caller alone. Raises PersistenceUnavailable, StoreUnusable when there is none.

        A caller that is cancelled costs the connection, and so does an error after which it is of no use.
        """
        wait_s = self._wait_s if wait_s is None else wait_s
        deadline = asyncio.get_running_loop().time() + wait_s
        try:
            async with asyncio.timeout_at(deadline) if self._free.locked() else nullcontext():
                await self._free.acquire()
        except TimeoutError:
            raise PersistenceUnavailable(session_id, f"no connection was free within {wait_s * 1000:.0f} ms") from None
        try:
            link = await self._take(session_id, deadline)
            try:
                yield link
            except BaseException as error:  # whatever it was: a connection that may be in the middle of something goes
                self._give_back(link, error)
                raise
            self._give_back(link, None)
        finally:
            self._free.release()

    async def close(self) -> None:
        """Say goodbye to the server; connections still in use go when they are given back."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        for link in idle:
            await link.close()

    async def _take(self, session_id: str, deadline: float) -> Link:
        if self._is_closed:
            raise PersistenceUnavailable(session_id, "the store is not open")
        while self._idle and not self._connector.has_lost:
            link = self._idle.pop()
            if not link.connection.is_closed():  # the server may have ended it while nobody used it
                return link
        while True:
            try:
                return await self._connector.connect()
            except PersistenceUnavailable as error:
                # A server that restarts, or a standby that takes over, is there in a moment.
                if asyncio.get_running_loop().time() + _PAUSE_S >= deadline:
                    raise PersistenceUnavailable(session_id, error.reason) from None
            await asyncio.sleep(_PAUSE_S)

    def _give_back(self, link: Link, error: BaseException | None) -> None:
        connection = link.connection
        is_broken = error is not None and not (
            errors.leaves_the_connection_usable(error)
            if isinstance(error, errors.FOREIGN)
            else isinstance(error, Exception)  # ours; what is not, like a cancellation, may have come in the middle
        )
        if is_broken:
            self._connector.lost(link)
        is_spare = len(self._idle) >= self._size
        if is_broken or is_spare or self._is_closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        else:
            self._idle.append(link)


@asynccontextmanager
async def transaction(connection: Connection, begin: str = READ_WRITE) -> AsyncIterator[None]:
    """All that is done inside, or nothing. An exception undoes it; a caller that is cancelled leaves it to the pool."""
    await connection.execute(begin)
    try:
        yield
    except Exception as error:  # of any kind: what was done so far is undone, if the server is still there to do it
        if not isinstance(error, errors.FOREIGN) or errors.leaves_the_connection_usable(error):
            await connection.execute("rollback")
        raise
    # fp: postgres.committing
    await connection.execute("commit")
    # fp: postgres.committed

"""The lease of one claim: renewed before it runs out, and known to run long enough before an effect may begin."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from app.session.errors import LOST_ERRORS, PersistenceUnavailable, SessionNotFound, SessionNotLive

logger = logging.getLogger(__name__)


class Lease:
    """`lease_s` seconds, counted from when the last renewal that the store confirmed was *sent*: the store began later.

    `renew` asks the store for a new one, and its answer is awaited for `patience_s`. `confirmed_at` is in seconds on
    the event loop's clock.
    """

    def __init__(
        self,
        session_id: str,
        lease_s: float,
        renew: Callable[[], Awaitable[None]],
        confirmed_at: float,
        patience_s: float,
    ) -> None:
        self.confirmed_at = confirmed_at
        self._session_id = session_id
        self._lease_s = lease_s
        self._renew = renew
        self._patience_s = patience_s

    def confirm(self, sent_at: float) -> None:
        """The store did what was sent then, and what was sent renews the lease."""
        self.confirmed_at = max(self.confirmed_at, sent_at)

    async def ensure(self, margin_s: float) -> None:
        """Return if the lease certainly runs `margin_s` more; renews it if that is not known. Raises as `renew`."""
        if asyncio.get_running_loop().time() - self.confirmed_at > self._lease_s - margin_s:
            await self.renew()

    async def renew(self) -> None:
        """Start the lease anew. Raises what the store raised; PersistenceUnavailable if it did not answer in time."""
        sent_at = asyncio.get_running_loop().time()
        renewing = asyncio.ensure_future(self._renew())
        try:
            done, _ = await asyncio.wait((renewing,), timeout=self._patience_s)
        finally:
            if not renewing.done():  # too late, or nobody waits any more. What comes of it does not matter then,
                renewing.cancel()  # and a store that does not let go of it is not waited for
                renewing.add_done_callback(_look_at)
        if not done:
            reason = f"it did not confirm the lease within {self._patience_s:g} s"
            raise PersistenceUnavailable(self._session_id, reason)
        renewing.result()
        self.confirm(sent_at)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """While inside, the lease is renewed whenever nothing was confirmed for a third of it."""
        beating = asyncio.get_running_loop().create_task(self._beat())
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait((beating,))

    async def _beat(self) -> None:
        third = self._lease_s / 3
        while True:
            wait_s = self.confirmed_at + third - asyncio.get_running_loop().time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue
            try:
                await self.renew()
            except (*LOST_ERRORS, SessionNotFound, SessionNotLive):
                return  # there is no lease any more; whoever writes next is told so
            except Exception as error:  # whatever the store raised: the lease may still be saved
                logger.warning("the lease of session %s was not renewed: %s", self._session_id, error)
                await asyncio.sleep(third / 10)


def _look_at(renewing: asyncio.Future[None]) -> None:
    """asyncio reports an error that nobody has looked at."""
    if not renewing.cancelled():
        renewing.exception()

"""The application from its start to its stop: opened in order, closed in reverse, whatever fails on the way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

from app.session.log_state import IDLE
from containers.application import Built, build
from containers.settings import Settings

logger = logging.getLogger(__name__)


def running(settings: Settings, *, only_store: bool = False) -> Lifespan:
    """`async with running(settings) as application: ...`. Raises ConfigurationError before anything is opened.

    With `only_store` tools that have to be opened are left closed, for who runs no agent.
    """
    return Lifespan(build(settings), only_store=only_store)


class Lifespan:
    """Opens a built application when it is entered, and stops it when it is left.

    `unwritten` tells, once it has stopped, how many events of which sessions never reached the store.
    """

    def __init__(self, application: Built, *, only_store: bool = False) -> None:
        self.application = application
        self._only_store = only_store
        self.unwritten: dict[str, int] = {}
        self._is_open = False
        self._stopping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Built:
        await self.start()
        return self.application

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        except Exception as failure:  # the error that ended the body is the one to tell; this one must not hide it
            if error is None:
                raise
            logger.error("stopping failed as well: %s", failure)

    async def start(self) -> None:
        """Open the backend, then the tools. Raises what they raise, with everything closed again."""
        if self._is_open or self._stopping is not None:
            raise RuntimeError("an application is started once; build another one")
        persistence, tool_set = self.application.persistence, self.application.tools.tool_set
        try:
            await persistence.open()
            if not self._only_store:
                await tool_set.open()
        except BaseException:  # also when it is cancelled: whatever is open by then is closed
            for close in (tool_set.close, persistence.close):
                failure = await _within(self.application.settings.shutdown_timeout_s, close)
                if failure is not None:
                    logger.error("closing after a failed start failed as well: %s", failure)
            raise
        self._is_open = True

    async def stop(self) -> None:
        """End the turns, flush, release the sessions, close tools and backend; all within `shutdown_timeout_s`.

        Every step is tried, and the first error is raised at the end. Stopping twice is one stop; both wait for it.
        """
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        if not self._is_open:
            return
        clock, timeout_s = asyncio.get_running_loop().time, self.application.settings.shutdown_timeout_s
        started_at = clock()
        errors = []
        for share, step in (  # of the time: however long a step takes, the ones after it get theirs
            (0.7, self.application.agents.close),
            (0.8, self._release_others),
            (0.9, self.application.tools.tool_set.close),
            (1.0, self.application.persistence.close),
        ):
            error = await _within(started_at + share * timeout_s - clock(), step)
            if error is not None:
                errors.append(error)
        self._is_open = False
        self._report()
        if errors:
            raise errors[0]

    async def _release_others(self) -> None:
        """Release the sessions that have no agent, side by side."""
        sessions, agents = self.application.sessions, self.application.agents
        others = [session for session in sessions.live if agents.get(session.id) is None]
        results = await asyncio.gather(*map(sessions.release, others), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _report(self) -> None:
        """Say of each session that is live still what is left of it."""
        for session in self.application.sessions.live:
            missing = len(session) - session.durable
            if missing:
                self.unwritten[session.id] = missing
                logger.error("session %s: %d events were never stored", session.id, missing)
            if session.state.turn.state != IDLE:
                logger.warning("session %s: its turn has not ended; it is left to recovery", session.id)


async def _within(timeout_s: float, step: Callable[[], Awaitable[None]]) -> BaseException | None:
    """Do a step; its error, if it fails or takes longer. A little of the time is kept for cancelling it."""

    async def run() -> None:
        await step()

    task = asyncio.get_running_loop().create_task(run())
    done, _ = await asyncio.wait((task,), timeout=max(0.9 * timeout_s, 0))
    if not done:
        task.cancel()
        await asyncio.wait((task,), timeout=max(0.1 * timeout_s, 0))
        return TimeoutError("stopping took longer than it may (shutdown_timeout_s)")
    return asyncio.CancelledError() if task.cancelled() else task.exception()

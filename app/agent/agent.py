"""The agent of one live session: the task that runs its turns one after another, and the ways to stop it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal, TypeAlias

from app.agent.inbox import Inbox
from app.agent.loop import AgentLoop
from app.agent.outcome import Outcome
from app.agent.turn import AfterAppend, ModelConfig, Turn
from app.agent.waiters import Waiters
from app.cancel import CancelSignal
from app.session import events as ev
from app.session.errors import LOST, AgentClosed, LimitExceeded, PersistenceError
from app.session.session import Session
from app.session.store import SessionStore

logger = logging.getLogger(__name__)

Status: TypeAlias = Literal["idle", "running", "closed"]


class Agent:
    """Runs the turns of one session. `config` may be changed; the next request uses it.

    The verbs are synchronous: once one returns, the message is in the log. Whoever promises something to somebody else
    awaits `sessions.flush(agent.session)` first.
    """

    def __init__(
        self,
        session: Session,
        sessions: SessionStore,
        loop: AgentLoop,
        config: ModelConfig,
        after_append: AfterAppend,
        *,
        shutdown_timeout_s: float = 30.0,
    ) -> None:
        self.session = session
        self.config = config
        self.status: Status = "idle"
        self._sessions = sessions
        self._loop = loop
        self._after_append = after_append
        self._shutdown_timeout_s = shutdown_timeout_s
        self._inbox = Inbox(session)
        self._waiters = Waiters(session)
        self._signal: CancelSignal | None = None
        self._running: asyncio.Task[None] | None = None
        self._driver: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_closing = False
        self._has_asked = False
        self._event_loop = asyncio.get_running_loop()
        session.on_lost.append(self._stop_lost)
        self._wake()

    # ---------------------------------------------------------------------------------------- the inbox

    def send(self, content: Any, *, id: str | None = None, meta: ev.JsonObject | None = None) -> str:
        """Accept a message that gets a turn of its own. Returns its id; giving the same again appends nothing.

        `content` is a text, or a list of blocks with a `type`. Raises ValueError, UnstorableValue, InvalidId,
        MessageConflict, LimitExceeded, AgentClosed, and the error of a lost session.
        """
        return self.accept(content, "next_turn", id, meta)

    def steer(self, content: Any, *, id: str | None = None, meta: ev.JsonObject | None = None) -> str:
        """Accept a message for the running turn's next step, and have one more; like `send` when nothing runs."""
        return self.accept(content, "next_step", id, meta)

    def inject(self, content: Any, *, id: str | None = None, meta: ev.JsonObject | None = None) -> str:
        """Accept context for the next step or the next turn; it starts nothing by itself."""
        return self.accept(content, "context", id, meta)

    def accept(
        self, content: Any, placement: ev.Placement, message_id: str | None = None, meta: ev.JsonObject | None = None
    ) -> str:
        """What the three verbs do, by the placement of the message."""
        self._check_open()
        accepted_id = self._inbox.accept(content, placement, message_id, meta)
        self._wake()
        return accepted_id

    def _accept_from_body(self, content: Any, placement: ev.Placement) -> str:
        """As the verbs, also from the thread of a tool's sync body."""
        try:
            is_ours = asyncio.get_running_loop() is self._event_loop
        except RuntimeError:  # no event loop runs in this thread: it is a sync body's
            is_ours = False
        if is_ours:
            return self.accept(content, placement)

        async def accept() -> str:
            return self.accept(content, placement)

        return asyncio.run_coroutine_threadsafe(accept(), self._event_loop).result()

    def discard(self, ids: list[str], cause: str = "user") -> None:
        """Drop pending messages. Raises IllegalEvent, naming them, if any of them is not pending."""
        self._check_open()
        self._inbox.discard(ids, cause)

    def cancel(self, cause: str = "user", *, keep_inbox: bool = False) -> None:
        """Drop the pending messages that wake (not context), then ask the running turn to stop. Never waits."""
        self.session.check_thread()
        if not keep_inbox and self.session.is_live and not self.session.is_lost:
            self._inbox.discard_waking(cause)
        if self._signal is not None:
            self._signal.cancel(cause)

    # ---------------------------------------------------------------------------------------- waiting and stopping

    async def wait(self, message_id: str) -> Outcome:
        """What became of a message: the end of the turn that took it once its final flush has settled, or discarded.

        Raises KeyError for an id that was never accepted, AgentClosed, and the error of a lost session.
        """
        if self.session.lost is not None:
            raise self.session.lost
        if message_id not in self.session.state.accepted:
            raise KeyError(message_id)
        outcome = self._waiters.find(message_id)
        if outcome is None:
            self._check_open()
            outcome = await self._waiters.wait(message_id)
        return outcome

    async def wait_idle(self) -> None:
        """Return when no turn runs, no message that wakes is pending, and the last final flush has settled.

        Raises the error of a lost session.
        """
        while self._driver is not None:
            await asyncio.wait((self._driver,))
        if self.session.lost is not None:
            raise self.session.lost

    async def close(self, cause: str = "shutdown") -> None:
        """Cancel the running turn, wait until it has ended and is flushed, and release the session.

        Pending messages are kept for whoever resumes it. Closing twice is one closing. Raises what the release raises;
        the session is live still then, and closing again tries again.
        """
        if self._closing is None or (self._closing.done() and self.status != "closed"):
            self._is_closing = True
            self._closing = self._event_loop.create_task(self._close(cause))
        await asyncio.shield(self._closing)

    async def abandon(self) -> None:
        """End every task of this agent at once. A turn that runs is left to recovery, the session as it is."""
        self._is_closing = True
        tasks = [task for task in (self._running, self._driver, self._closing) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _close(self, cause: str) -> None:
        if self._signal is not None:
            self._signal.cancel(cause)
        while self._driver is not None:
            await asyncio.wait((self._driver,))
        try:
            await self._sessions.release(self.session)
        finally:
            if not self.session.is_live:  # released, or found to be lost by that
                self._set_status("closed")
                self._waiters.fail(self.session.lost or AgentClosed(self.session.id))

    # ---------------------------------------------------------------------------------------- the driver

    def _wake(self) -> None:
        if self._driver is None and not self._is_closing and self._inbox.waking:
            self._driver = self._event_loop.create_task(self._drive())
            self._driver.add_done_callback(self._driver_ended)

    def _driver_ended(self, driver: asyncio.Task[None]) -> None:
        if self._driver is driver:  # cancelled before its first step, it has done nothing at all
            self._driver = None
            self._is_closing = True

    async def _drive(self) -> None:
        try:
            self._set_status("running")
            while not self._is_closing and self._inbox.waking:
                await self._run_turn()
        finally:
            self._driver = None
            if self.session.is_lost:
                self._start_closing()
            elif not self._is_closing:
                self._set_status("idle")

    async def _run_turn(self) -> None:
        signal = self._signal = CancelSignal()
        since, number = len(self.session), self.session.state.turn.turn + 1
        turn = Turn(self.session, self.config, signal, self._accept_from_body, self._after_append, not self._has_asked)
        self._waiters.begin(number)
        running = self._running = self._event_loop.create_task(self._loop.run_turn(turn))
        try:
            async with self._sessions.heartbeat(self.session):
                await asyncio.wait((running,))
            if running.cancelled() or running.exception() is not None:
                self._give_up(running)
            await self._flush_final(number)
        except asyncio.CancelledError:
            await self._shut_down(running, signal, number)
            raise
        finally:
            self._signal = self._running = None
            self._has_asked = not turn.is_first_request
            self._waiters.settle(since)

    async def _flush_final(self, number: int) -> None:
        if self.session.is_lost:
            return
        try:
            await self._sessions.flush(self.session, "final")
        except Exception as error:  # whatever the store raised: nothing is appended, and the session stays usable
            if not self.session.is_lost:
                code = error.code if isinstance(error, PersistenceError) else "INTERNAL"
                self.session.notify(ev.AgentError(code, str(error), number))

    async def _shut_down(self, running: asyncio.Task[None], signal: CancelSignal, number: int) -> None:
        """This task was cancelled: close the turn and flush it, as far as the shutdown time allows."""
        self._is_closing = True
        signal.cancel("shutdown")
        done, _ = await asyncio.wait((running,), timeout=self._shutdown_timeout_s)
        if done and not running.cancelled():
            await self._flush_final(number)

    def _give_up(self, running: asyncio.Task[None]) -> None:
        """The turn's task ended without ending the turn."""
        error = None if running.cancelled() else running.exception()
        if isinstance(error, LimitExceeded):  # the log takes no more turns: say so, and do not try for ever
            self._inbox.discard_waking("limit")
            self.session.notify(ev.AgentError(error.code, str(error)))
            return
        logger.error("the turn of session %s broke off; it is left to recovery", self.session.id, exc_info=error)
        self.session.notify(ev.AgentError("INTERNAL", str(error) if error else "the turn's task was cancelled"))
        self._start_closing()

    def _stop_lost(self, error: PersistenceError) -> None:
        self._is_closing = True
        if self._signal is not None:
            self._signal.cancel(LOST.get(type(error), "conflict"))
        if self._driver is None:
            self._start_closing()

    def _start_closing(self) -> None:
        self._is_closing = True
        self._closing = self._closing or self._event_loop.create_task(self._close("shutdown"))

    def _set_status(self, status: Status) -> None:
        if status != self.status:
            self.status = status
            self.session.notify(ev.AgentStatus(status))

    def _check_open(self) -> None:
        self.session.check_thread()
        if self.session.lost is not None:
            raise self.session.lost
        if self._is_closing:
            raise AgentClosed(self.session.id)

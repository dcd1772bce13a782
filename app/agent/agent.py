"""The agent of one live session: an inbox that wakes it, the task that runs its turns, and the ways to stop it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal, TypeAlias

from app.agent.loop import AgentLoop
from app.agent.outcome import Outcome, find_outcome
from app.agent.turn import AfterAppend, ModelConfig, Turn
from app.cancel import CancelSignal
from app.session import events as ev
from app.session.errors import (
    LOST,
    AgentClosed,
    LimitExceeded,
    MessageConflict,
    PersistenceError,
)
from app.session.identifiers import check_id, new_id
from app.session.record import SessionEvent, message_problem
from app.session.session import Session
from app.session.store import SessionStore
from app.session.values import encode

logger = logging.getLogger(__name__)

Status: TypeAlias = Literal["idle", "running", "closed"]

WAKES: tuple[ev.Placement, ...] = ("next_turn", "next_step")


class Agent:
    """Runs the turns of one session, one after another. `config` may be changed; the next request uses it.

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
        self._signal: CancelSignal | None = None
        self._driver: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_closing = False
        self._has_asked = False
        self._unsettled_turns: set[int] = set()
        self._waiters: dict[str, list[asyncio.Future[Outcome]]] = {}
        self._event_loop = asyncio.get_running_loop()
        session.observe(self._note_discarded)
        session.on_lost.append(self._stop_lost)
        self._wake()

    # ---------------------------------------------------------------------------------------- the inbox

    def send(self, content: Any, *, id: str | None = None, meta: ev.JsonObject | None = None) -> str:
        """Accept a message that gets a turn of its own. Returns its id; giving the same again appends nothing.

        `content` is a text, or a list of blocks with a `type`. Raises ValueError, UnstorableValue, InvalidId,
        MessageConflict, LimitExceeded, AgentClosed, and the error of a lost session.
        """
        return self.accept(content, "next_turn", id=id, meta=meta)

    def steer(self, content: Any, *, id: str | None = None, meta: ev.JsonObject | None = None) -> str:
        """Accept a message for the running turn's next step, and have one more; like `send` when nothing runs."""
        return self.accept(content, "next_step", id=id, meta=meta)

    def inject(self, content: Any, *, id: str | None = None, meta: ev.JsonObject | None = None) -> str:
        """Accept context for the next step or the next turn; it starts nothing by itself."""
        return self.accept(content, "context", id=id, meta=meta)

    def accept(
        self, content: Any, placement: ev.Placement, *, id: str | None = None, meta: ev.JsonObject | None = None
    ) -> str:
        """What the three verbs do."""
        self._check_open()
        message: ev.JsonObject = {"id": new_id() if id is None else check_id(id), "content": content}
        message |= {} if meta is None else {"meta": meta}
        text = encode(message)
        if problem := message_problem(message):
            raise ValueError(problem)
        message_id: str = message["id"]
        if message_id in self.session.state.accepted:
            if not self.session.state.is_same_message(message_id, text, placement):
                raise MessageConflict(self.session.id, message_id)
            return message_id
        self.session.append_in_turn(ev.InboxAccepted(message, placement))
        if placement in WAKES:
            self._wake()
        return message_id

    def accept_from_body(self, content: Any, placement: ev.Placement) -> str:
        """As `accept`, also from the thread of a tool's sync body."""
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
        self.session.append_in_turn(ev.InboxDiscarded(ids, cause))

    def cancel(self, cause: str = "user", *, keep_inbox: bool = False) -> None:
        """Drop the pending messages that wake (not context), then ask the running turn to stop. Never waits."""
        self.session.check_thread()
        pending = [entry.id for entry in self.session.state.pending_of(*WAKES)]
        if pending and not keep_inbox and not self.session.is_lost:
            self.session.append_in_turn(ev.InboxDiscarded(pending, cause))
        if self._signal is not None:
            self._signal.cancel(cause)

    # ---------------------------------------------------------------------------------------- waiting

    async def wait(self, message_id: str) -> Outcome:
        """What became of a message: the end of the turn that took it once its final flush has settled, or discarded.

        Raises KeyError for an id that was never accepted, AgentClosed, and the error of a lost session.
        """
        if self.session.lost is not None:
            raise self.session.lost
        state = self.session.state
        if message_id not in state.accepted:
            raise KeyError(message_id)
        if message_id not in state.pending:
            outcome = find_outcome(self.session, message_id)
            if outcome is not None and outcome.turn not in self._unsettled_turns:
                return outcome
        self._check_open()
        waiter: asyncio.Future[Outcome] = self._event_loop.create_future()
        self._waiters.setdefault(message_id, []).append(waiter)
        return await waiter

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

    async def _close(self, cause: str) -> None:
        if self._signal is not None:
            self._signal.cancel(cause)
        while self._driver is not None:
            await asyncio.wait((self._driver,))
        await self._sessions.release(self.session)
        self._set_status("closed")
        self._fail_waiters(self.session.lost or AgentClosed(self.session.id))

    # ---------------------------------------------------------------------------------------- the driver

    def _wake(self) -> None:
        if self._driver is None and not self._is_closing and self.session.state.pending_of(*WAKES):
            self._driver = self._event_loop.create_task(self._drive())
            self._driver.add_done_callback(self._driver_ended)

    def _driver_ended(self, driver: asyncio.Task[None]) -> None:
        if self._driver is driver:  # cancelled before its first step, it has done nothing at all
            self._driver = None
            self._is_closing = True

    async def _drive(self) -> None:
        try:
            self._set_status("running")
            while not self._is_closing and self.session.state.pending_of(*WAKES):
                await self._run_turn()
        finally:
            self._driver = None
            if self.session.is_lost:
                self._closing = self._closing or self._event_loop.create_task(self._close("shutdown"))
            elif not self._is_closing:
                self._set_status("idle")
                self._wake()

    async def _run_turn(self) -> None:
        signal = self._signal = CancelSignal()
        since, number = len(self.session), self.session.state.turn.turn + 1
        turn = Turn(self.session, self.config, signal, self.accept_from_body, self._after_append, not self._has_asked)
        self._unsettled_turns.add(number)
        running = self._event_loop.create_task(self._loop.run_turn(turn))
        try:
            async with self._sessions.heartbeat(self.session):
                await asyncio.wait((running,))
            if running.cancelled() or running.exception() is not None:
                self._give_up(running)
            if not self.session.is_lost:
                await self._flush_final(number)
        except asyncio.CancelledError:
            await self._shut_down(running, signal)
            if not self.session.is_lost:
                self._tell_waiters(since)
            raise
        finally:
            self._signal = None
            self._unsettled_turns.discard(number)
        self._has_asked = not turn.is_first_request
        if not self.session.is_lost:  # or `_close` tells them, with the error of the session
            self._tell_waiters(since)

    async def _flush_final(self, number: int) -> None:
        try:
            await self._sessions.flush(self.session, "final")
        except Exception as error:  # whatever the store raised: nothing is appended, and the session stays usable
            if not self.session.is_lost:
                code = error.code if isinstance(error, PersistenceError) else "INTERNAL"
                self.session.notify(ev.AgentError(code, str(error), number))

    async def _shut_down(self, running: asyncio.Task[None], signal: CancelSignal) -> None:
        """This task was cancelled: close the turn and flush it, as far as the shutdown time allows."""
        self._is_closing = True
        signal.cancel("shutdown")
        done, _ = await asyncio.wait((running,), timeout=self._shutdown_timeout_s)
        if done and not self.session.is_lost:
            await self._flush_final(self.session.state.turn.turn)

    def _give_up(self, running: asyncio.Task[None]) -> None:
        """The turn's task ended without ending the turn."""
        error = None if running.cancelled() else running.exception()
        if isinstance(error, LimitExceeded):  # the log takes no more turns: say so, and do not try for ever
            waking = [entry.id for entry in self.session.state.pending_of(*WAKES)]
            self.session.append(ev.InboxDiscarded(waking, "limit"))
            self.session.notify(ev.AgentError(error.code, str(error)))
            return
        self._is_closing = True
        logger.error("the turn of session %s broke off; it is left to recovery", self.session.id, exc_info=error)
        self.session.notify(ev.AgentError("INTERNAL", str(error) if error else "the turn's task was cancelled"))
        self._closing = self._closing or self._event_loop.create_task(self._close("shutdown"))

    def _stop_lost(self, error: PersistenceError) -> None:
        self._is_closing = True
        if self._signal is not None:
            self._signal.cancel(LOST.get(type(error), "conflict"))
        if self._driver is None and self._closing is None:
            self._closing = self._event_loop.create_task(self._close("shutdown"))

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

    # ---------------------------------------------------------------------------------------- the waiters

    def _note_discarded(self, event: SessionEvent | ev.Notice) -> None:
        if isinstance(event, SessionEvent) and event.type == ev.InboxDiscarded.type and self._waiters:
            data = event.data
            for message_id in data["ids"]:
                self._resolve(message_id, Outcome(message_id, cause=data["cause"], is_discarded=True))

    def _tell_waiters(self, since: int) -> None:
        for message_id in tuple(self._waiters):
            outcome = find_outcome(self.session, message_id, since)
            if outcome is not None:
                self._resolve(message_id, outcome)

    def _resolve(self, message_id: str, outcome: Outcome) -> None:
        for waiter in self._waiters.pop(message_id, ()):
            if not waiter.done():
                waiter.set_result(outcome)

    def _fail_waiters(self, error: Exception) -> None:
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
        self._waiters.clear()

"""Who waits for what becomes of a message, and how they are told."""

from __future__ import annotations

import asyncio

from app.agent.outcome import Outcome, find_outcome
from app.session import events as ev
from app.session.record import SessionEvent
from app.session.session import Session


class Waiters:
    """The callers of `Agent.wait`. A turn's outcome counts once its final flush has succeeded or failed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[str, list[asyncio.Future[Outcome]]] = {}
        self._unsettled: int | None = None
        session.observe(self._note_discarded)

    def find(self, message_id: str) -> Outcome | None:
        """The outcome of a message, if it has one already."""
        if message_id in self._session.state.pending:
            return None
        outcome = find_outcome(self._session, message_id)
        is_unsettled = outcome is not None and outcome.turn is not None and outcome.turn == self._unsettled
        return None if is_unsettled else outcome

    async def wait(self, message_id: str) -> Outcome:
        """The outcome of a message that has none yet."""
        waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(message_id, []).append(waiter)
        return await waiter

    def begin(self, turn: int) -> None:
        """A turn is about to run."""
        self._unsettled = turn

    def settle(self, since: int) -> None:
        """The turn that began at seq `since` has ended, and its final flush is over: tell who waits for it."""
        self._unsettled = None
        if not self._session.is_lost:  # or `fail` tells them, with the error of the session
            for message_id in tuple(self._waiting):
                outcome = find_outcome(self._session, message_id, since)
                if outcome is not None:
                    self._tell(message_id, outcome)

    def fail(self, error: Exception) -> None:
        """Nothing will become of any message here."""
        for waiters in self._waiting.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
        self._waiting.clear()

    def _note_discarded(self, event: SessionEvent | ev.Notice) -> None:
        if isinstance(event, SessionEvent) and event.type == ev.InboxDiscarded.type and self._waiting:
            data = event.data
            for message_id in data["ids"]:
                self._tell(message_id, Outcome(message_id, cause=data["cause"], is_discarded=True))

    def _tell(self, message_id: str, outcome: Outcome) -> None:
        for waiter in self._waiting.pop(message_id, ()):
            if not waiter.done():
                waiter.set_result(outcome)

"""The messages put to an agent: checked at once, in the log before the verb returns, and so never lost by a crash."""

from __future__ import annotations

from typing import Any

from app.session import events as ev
from app.session.errors import MessageConflict
from app.session.identifiers import check_id, new_id
from app.session.record import message_problem
from app.session.session import Session
from app.session.values import encode

WAKES: tuple[ev.Placement, ...] = ("next_turn", "next_step")
"""The placements that start a turn when none runs."""


class Inbox:
    """The accepted messages of one session that no turn has taken: a fold over its log, and the ways into it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def waking(self) -> list[str]:
        """The ids of the pending messages that wake, in order of acceptance."""
        return [entry.id for entry in self._session.state.pending_of(*WAKES)]

    def accept(
        self, content: Any, placement: ev.Placement, message_id: str | None = None, meta: ev.JsonObject | None = None
    ) -> str:
        """Accept a message; returns its id. The same id, content, placement and meta again append nothing.

        Raises ValueError, UnstorableValue, InvalidId, MessageConflict, LimitExceeded, and the error of a lost session.
        """
        message: ev.JsonObject = {"id": new_id() if message_id is None else check_id(message_id), "content": content}
        message |= {} if meta is None else {"meta": meta}
        text = encode(message)
        if problem := message_problem(message):
            raise ValueError(problem)
        accepted_id: str = message["id"]
        if accepted_id not in self._session.state.accepted:
            self._session.append_in_turn(ev.InboxAccepted(message, placement))
        elif not self._session.state.is_same_message(accepted_id, text, placement):
            raise MessageConflict(self._session.id, accepted_id)
        return accepted_id

    def discard(self, ids: list[str], cause: str) -> None:
        """Drop pending messages. Raises IllegalEvent, naming them, if any of them is not pending."""
        self._session.append_in_turn(ev.InboxDiscarded(ids, cause))

    def discard_waking(self, cause: str) -> None:
        """Drop every pending message that wakes, if there is one; context stays."""
        if waking := self.waking:
            self.discard(waking, cause)

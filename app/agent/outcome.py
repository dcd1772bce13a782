"""What became of a message: read from the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.session import events as ev
from app.session.session import Session


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of the turn that took a message (`reason`, `cause`, `error` as in `turn/end`), or that it was discarded.

    `durable` says whether that end is stored.
    """

    message_id: str
    turn: int | None = None
    reason: str | None = None
    cause: str | None = None
    error: dict[str, Any] | None = None
    durable: bool = False
    is_discarded: bool = False


def find_outcome(session: Session, message_id: str, since: int = 0) -> Outcome | None:
    """The outcome of a message as the log from seq `since` shows it; None while there is none."""
    turn = None
    for event in session.events_from(since):
        if event.type == ev.UserMessage.type and turn is None:
            data = event.data
            turn = data["turn"] if data["message"]["id"] == message_id else None
        elif event.type == ev.InboxDiscarded.type and message_id in (data := event.data)["ids"]:
            return Outcome(message_id, cause=data["cause"], durable=event.seq < session.durable, is_discarded=True)
        elif event.type == ev.TurnEnd.type and turn is not None:
            data = event.data
            durable = event.seq < session.durable
            return Outcome(message_id, turn, data["reason"], data.get("cause"), data.get("error"), durable)
    return None

"""A session whose process was gone in the middle of a turn: stored, its claim not ended, and nobody there to go on."""

from __future__ import annotations

from dataclasses import dataclass

from app.session import events as ev
from app.session.ownership import Owner
from app.session.persistence import SessionPersistence
from app.session.record import SessionEvent
from app.session.session import Session
from tests.support.house import OWNER, House

MODEL = {"adapter": "script", "model": "test"}


@dataclass(frozen=True)
class Open:
    """A call that was asked for and has no result; `effects` are those recorded, None: its start was not."""

    id: str
    name: str = "act"
    effects: str | None = "side_effect"
    arguments: str = "{}"


async def leave(
    persistence: SessionPersistence, *calls: Open, session_id: str = "s", owner: Owner = OWNER
) -> tuple[SessionEvent, ...]:
    """Store the first turn of a session up to these open calls, as a process would that was killed then; its events."""
    house = House(persistence=persistence, owner=owner)
    await persistence.open()
    session = await house.sessions.create(session_id)
    append_open_turn(session, *calls)
    await house.sessions.flush(session)
    await persistence.close()
    return session.events


def append_open_turn(session: Session, *calls: Open) -> None:
    """A turn of one step that is still open: its answer asked for these calls."""
    blocks = [{"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments} for call in calls]
    turn, message = session.state.turn.turn + 1, {"id": f"m{len(session)}", "content": "go"}
    session.append(ev.InboxAccepted(message, "next_turn"))
    session.append(ev.TurnStart(turn, [message["id"]]), ev.UserMessage(turn, message, "next_turn"))
    session.append(ev.StepStart(turn, 1))
    session.append(ev.RequestHeader(turn, 1, "initial", MODEL, []))
    session.append(ev.AssistantMessage(turn, 1, blocks, [], MODEL, "tool_calls"))
    for call in calls:
        if call.effects is not None:
            session.append(ev.ToolCall(turn, 1, call.id, call.name, call.arguments, call.effects))  # type: ignore[arg-type]

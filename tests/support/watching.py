"""What a test sees of a live session, and how it acts at a chosen place of its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from app.session import events as ev
from app.session.log_state import IDLE
from app.session.persistence import SessionPersistence
from app.session.record import SessionEvent
from app.session.session import Session


def notices(session: Session) -> list[ev.Notice]:
    """The notices given from now on; the list grows."""
    seen: list[ev.Notice] = []
    session.observe(lambda told: None if isinstance(told, SessionEvent) else seen.append(told))
    return seen


def errors(seen: list[ev.Notice]) -> list[ev.AgentError]:
    return [notice for notice in seen if isinstance(notice, ev.AgentError)]


def at(session: Session, place: str, act: Callable[[], object], *, nth: int = 1) -> None:
    """Have an observer call `act` at the `nth` event of this type, or notice: `agent/status running`, `agent/error`."""
    passed = 0

    def observe(told: SessionEvent | ev.Notice) -> None:
        nonlocal passed
        if _name(told) == place:
            passed += 1
            if passed == nth:
                act()

    session.observe(observe)


def _name(told: SessionEvent | ev.Notice) -> str:
    if isinstance(told, SessionEvent):
        return told.type
    return f"agent/status {told.status}" if isinstance(told, ev.AgentStatus) else "agent/error"


def data_of(session: Session, type: str) -> list[ev.JsonObject]:
    """The data of every event of this type, in order."""
    return [event.data for event in session.events if event.type == type]


def taken(session: Session) -> list[tuple[int, Any, str]]:
    """Every message that a turn took: the turn, the content, and the placement."""
    return [(data["turn"], data["message"]["content"], data["placement"]) for data in data_of(session, "user/message")]


def results(session: Session) -> list[tuple[str, Any]]:
    """Each tool result in order: call id, and its value or its error's code."""
    return [
        (data["call_id"], data["error"]["code"] if data["is_error"] else data["value"])
        for data in data_of(session, "tool/result")
    ]


def calls_and_results(session: Session) -> list[str]:
    """`call c1`, `result c1`, ... in the order of the log."""
    words = {"tool/call": "call", "tool/result": "result"}
    return [f"{words[event.type]} {event.data['call_id']}" for event in session.events if event.type in words]


def is_balanced(session: Session) -> bool:
    """Whether no turn is open, and every call that was asked for has one result."""
    asked = [
        block["id"] for data in data_of(session, "assistant/message") for block in data["content"] if "id" in block
    ]
    return session.state.turn.state == IDLE and asked == [data["call_id"] for data in data_of(session, "tool/result")]


def unhandled_errors() -> list[dict[str, Any]]:
    """What asyncio reports from now on of tasks whose errors nobody looked at; it grows when they are collected."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    return reported


async def writes(persistence: SessionPersistence, session_id: str = "s") -> list[str]:
    """The reasons of the batches that are stored, in order."""
    return [end.reason for end in (await persistence.read(session_id)).ends]

"""`run` and `resume`: take a session, say what was repaired, hand the prompt over, and see the turns to their end."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.agent.agent import Agent
from app.agent.inbox import Inbox
from app.entrypoints.bodies import body
from app.entrypoints.escaping import one_line
from app.entrypoints.exits import DONE, FAILED, HELD, UNAVAILABLE
from app.entrypoints.narrator import Narrator
from app.entrypoints.output import Output
from app.entrypoints.stopping import Stopping
from app.session import events as ev
from app.session.errors import ConfigurationError, SessionDeleted, SessionExists, SessionHeld
from app.session.history import result_text
from app.session.record import SessionEvent, parse
from app.session.session import Session
from app.session.store import SessionStore

if TYPE_CHECKING:
    from containers.application import Built

POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Order:
    """What the user asked for. `may_create`: an unknown session id is made; `force`: take it from a live owner."""

    session_id: str | None
    prompt: str | None
    may_create: bool = False
    wait: bool = False
    force: bool = False


async def converse(application: Built, order: Order, output: Output, stopping: Stopping) -> int:
    """Carry the order out; the exit code. Raises errors of ours, and CancelledError if it is to stop at once."""
    agents, sessions = application.agents, application.sessions
    if agents.config.model is None and order.session_id is not None and order.prompt is None:
        return await _repair_only(sessions, order.session_id, order.force, output)
    session = await _enter(sessions, order, output)
    narrator = Narrator(output, session)
    _tell_repair(session, output)
    if order.prompt is not None:
        Inbox(session).accept(order.prompt, "next_turn")
        try:
            await sessions.flush(session)
        except SessionExists:  # two began it at once; the other one was first
            output.error(f"session {session.id!r} was created by another process at this moment; nothing was written")
            return HELD
        output.note((f"session {session.id}", "dim"))
    elif not session.state.pending_of("next_turn", "next_step"):
        _tell_how_to_go_on(session, output)
        return DONE
    agent = stopping.agent = agents.start(session)
    try:
        await agent.wait_idle()
    except SessionDeleted as deleted:  # while it ran: no fault of the command line
        output.error(str(deleted))
        return FAILED
    return _verdict(agent, narrator, output, stopping)


# ---------------------------------------------------------------------------------------- taking the session


async def _enter(sessions: SessionStore, order: Order, output: Output) -> Session:
    told: list[tuple[str, float]] = []
    while True:
        try:
            return await _take(sessions, order)
        except SessionHeld as held:
            if not order.wait or held.seconds_left is None:
                raise
            _tell_waiting(held.owner, held.seconds_left, told, output)
            await asyncio.sleep(min(max(held.seconds_left, 0.05), POLL_S))


async def _take(sessions: SessionStore, order: Order) -> Session:
    if order.session_id is None:
        return await sessions.create()
    if order.may_create:
        try:
            return await sessions.create(order.session_id)
        except SessionExists:  # then it is gone on with
            pass
    return await sessions.resume(order.session_id, force=order.force)


def _tell_waiting(owner: str, seconds_left: float, told: list[tuple[str, float]], output: Output) -> None:
    """Once for each owner, and once more when it turns out to be alive."""
    before = [left for name, left in told if name == owner]
    if not before:
        output.note((f"waiting for {owner!r}: its lease runs {seconds_left:.1f} s more", "yellow"))
    elif len(before) == 1 and seconds_left > before[0] + 0.05:
        output.note((f"{owner!r} is alive and renews its lease; --take-over would end its writing", "yellow"))
    else:
        return
    told.append((owner, seconds_left))


async def _repair_only(sessions: SessionStore, session_id: str, force: bool, output: Output) -> int:
    """Without a model nothing can run: the session is closed properly, and what is pending stays so."""
    session = await sessions.resume(session_id, force=force)
    _tell_repair(session, output)
    pending = session.state.pending_of("next_turn", "next_step")
    await sessions.release(session)
    if pending:
        raise ConfigurationError(f"{len(pending)} messages are pending, and no model is configured: pass --model")
    _tell_how_to_go_on(session, output)
    return DONE


# ---------------------------------------------------------------------------------------- what is said


def _tell_repair(session: Session, output: Output) -> None:
    if not session.closers:
        return
    if output.is_json:
        for closer in session.closers:
            output.record(closer.line)
        return
    turn = session.state.turn.turn
    output.note((f"session {session.id}: turn {turn} was cut short; these events close it", "yellow"))
    for closer in session.closers:
        output.note((f"  + {closer.seq} {closer.type}  {_closer_text(closer)}", ""))


def _closer_text(closer: SessionEvent) -> str:
    data = parse(closer.type, closer.data)
    if not isinstance(data, ev.ToolResult):
        return body(closer)
    code = "reconciled" if data.error is None else data.error["code"]
    return f"{data.call_id} {code}; the model will read: {result_text(data)}"


def _tell_how_to_go_on(session: Session, output: Output) -> None:
    turn = session.state.turn.turn
    if session.closers:
        what = f"turn {turn} was interrupted, and is not run again by itself"
    else:
        what = f"nothing was open in session {session.id}, and nothing is pending"
    command = f"beforehand resume {shlex.quote(one_line(session.id))} 'go on'"
    output.note((f"{what}; go on with: {command}", ""))


def _verdict(agent: Agent, narrator: Narrator, output: Output, stopping: Stopping) -> int:
    session, end, failure = agent.session, narrator.end, narrator.failure
    if session.durable < len(session):  # how many events are missing is told when the session is given up
        output.error(failure.message if failure is not None else f"the end of session {session.id!r} is not stored")
        return UNAVAILABLE
    if stopping.exit_code is not None and (end is None or end.reason == "aborted"):
        output.note(("cancelled" if end is None else f"turn {end.turn} was cancelled; its log is closed", "yellow"))
        return stopping.exit_code
    if end is None:
        output.error(failure.message if failure is not None else "no turn was run")
        return FAILED
    if end.reason in ("completed", "max_tokens"):
        return DONE
    error = end.error or {"code": end.reason, "message": f"cause {end.cause}"}
    output.error(f"turn {end.turn} ended in error: {error.get('code')}: {error.get('message')}")
    return FAILED

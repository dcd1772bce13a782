"""How a turn ends: what is open is closed truthfully, and the reason is one of a few."""

from __future__ import annotations

import logging

from app.agent.step import CheckpointFailed, ListenerFailed
from app.agent.turn import Turn, TurnFailed
from app.middleware import MiddlewareFailed
from app.session import events as ev
from app.session.errors import LimitExceeded, PersistenceError
from app.session.log_state import CALLS, DONE, REQUEST
from app.session.recovery import closing_results

logger = logging.getLogger(__name__)


async def end_turn(turn: Turn, failure: TurnFailed | None) -> None:
    """Close what is open, retire the signal, and record the one end of the turn."""
    session = turn.session
    if failure is None and session.lost is not None:
        failure = as_failure(session.lost, turn)
    for result in closing_results(session.state, {}):
        failure = await _record_closing(turn, result, failure)
    if session.state.turn.state in (REQUEST, DONE):
        failure = await _record_closing(turn, ev.StepEnd(turn.number, turn.step), failure)
    turn.signal.retire()
    end = _ending(turn, failure)
    session.append(end)
    if end.error is not None:
        session.notify(ev.AgentError(end.error["code"], end.error["message"], end.turn, end.error.get("step")))


def _ending(turn: Turn, failure: TurnFailed | None) -> ev.TurnEnd:
    """How the turn ends: a lost session before everything, then a cancel, then a failure."""
    lost = turn.session.lost
    if lost is not None:
        failure = TurnFailed(lost.code, str(lost), None if failure is None else failure.step)
    elif turn.signal.is_cancelled:
        return ev.TurnEnd(turn.number, "aborted", cause=turn.signal.cause)
    if failure is None:
        return ev.TurnEnd(turn.number, "max_tokens" if turn.hit_max_tokens else "completed")
    error: ev.JsonObject = {"message": str(failure), "code": failure.code}
    return ev.TurnEnd(turn.number, "error", error=error if failure.step is None else {**error, "step": failure.step})


async def _record_closing(turn: Turn, event: ev.EventData, failure: TurnFailed | None) -> TurnFailed | None:
    try:
        await turn.record(event)
    except CheckpointFailed as error:  # it is in the log; the first failure is the one that is told
        return failure or as_failure(error, turn)
    return failure


def as_failure(error: Exception, turn: Turn) -> TurnFailed:
    """What ended the turn, with its code. What has none is a bug, and is logged with its traceback."""
    if isinstance(error, TurnFailed):
        return error
    step = turn.step if turn.session.state.turn.state in (REQUEST, CALLS, DONE) else None
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return TurnFailed(code, str(error), step)
    logger.error("turn %d of session %s failed inside the loop", turn.number, turn.session.id, exc_info=error)
    return TurnFailed("INTERNAL", f"{type(error).__name__}: {error}", step)


_CODES: dict[type[Exception], str] = {
    CheckpointFailed: "CHECKPOINT_FAILED",
    PersistenceError: "CHECKPOINT_FAILED",
    MiddlewareFailed: "MIDDLEWARE_FAILED",
    ListenerFailed: "LISTENER_FAILED",
    LimitExceeded: "LIMIT_EXCEEDED",
}

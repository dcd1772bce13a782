"""`fork` and `delete`: the two commands that change what is stored without running anything."""

from app.entrypoints.exits import DONE
from app.entrypoints.output import Output
from app.session.store import SessionStore
from app.session.values import encode


async def fork(sessions: SessionStore, session_id: str, at: int | None, new_id: str | None, output: Output) -> int:
    """A new session with the log up to a turn's end; its id goes to standard output."""
    child = await sessions.fork(session_id, at, new_id)
    if output.is_json:
        output.record(encode({"id": child, "parent": session_id}))
    else:
        output.lines([((child, ""),)])
    return DONE


async def delete(sessions: SessionStore, session_id: str, output: Output) -> int:
    """The session is gone, and its id used up."""
    await sessions.delete(session_id)
    output.note((f"session {session_id} is deleted", "dim"))
    return DONE

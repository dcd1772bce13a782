"""`fork`, `export`, `import`, `delete`, `prune`: what changes or moves whole sessions without running anything."""

from collections.abc import AsyncIterator, Iterable

from app.entrypoints.documents import row_text, title_of
from app.entrypoints.escaping import one_line
from app.entrypoints.exits import DONE
from app.entrypoints.output import Output
from app.session.persistence import SessionRow
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


async def export(sessions: SessionStore, session_id: str, output: Output) -> int:
    """The session as lines of JSON on standard output."""
    for line in await sessions.export(session_id):
        output.record(line)
    return DONE


async def import_(sessions: SessionStore, lines: Iterable[str], output: Output) -> int:
    """An exported session under its own id, which goes to standard output."""
    session_id = await sessions.import_(lines)
    if output.is_json:
        output.record(encode({"id": session_id}))
    else:
        output.lines([((one_line(session_id), ""),)])
    return DONE


async def prune(sessions: SessionStore, before_ms: int, output: Output, *, yes: bool) -> int:
    """Delete every session that was last written before a time, and that nobody owns; or say which these are."""
    count = 0
    async for row in _unused(sessions, before_ms):
        count += 1
        if yes:
            await sessions.delete(row.session_id)
        if output.is_json:
            output.record(row_text(row))
        else:
            output.lines([((one_line(row.session_id), "bold"), (f"  {title_of(row) or ''}", ""))])
    output.note((f"{count} sessions {'are deleted' if yes else 'would be deleted; say --yes to do it'}", "dim"))
    return DONE


async def _unused(sessions: SessionStore, before_ms: int) -> AsyncIterator[SessionRow]:
    after: tuple[int, str] | None = None
    while rows := await sessions.list(1000, after):
        after = (rows[-1].created_at, rows[-1].session_id)
        for row in rows:
            is_owned = row.holder.owner is not None and row.holder.lease_left_s > 0
            if row.last_write < before_ms and not is_owned:
                yield row

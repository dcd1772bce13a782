"""`fork`, `export`, `import`, `delete`, `prune`: what changes or moves whole sessions without running anything."""

from collections.abc import Iterable, Iterator

from app.entrypoints.documents import row_text, title_of
from app.entrypoints.escaping import one_line
from app.entrypoints.exits import DONE
from app.entrypoints.output import Output
from app.entrypoints.rows import every_row
from app.session.errors import PersistenceError, SessionHeld, SessionNotFound
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
    number = 0
    with output.progress("exporting"):
        async for line in await sessions.export(session_id):
            output.record(line)
            number += 1
            output.at(f"exporting: {number} lines")
    return DONE


async def import_(sessions: SessionStore, lines: Iterable[str], output: Output) -> int:
    """An exported session under its own id, which goes to standard output."""

    def watched() -> Iterator[str]:
        for number, line in enumerate(lines, 1):
            output.at(f"importing: {number} lines read; nothing is stored before all of it is verified")
            yield line

    with output.progress("importing"):
        session_id = await sessions.import_(watched())
    if output.is_json:
        output.record(encode({"id": session_id}))
    else:
        output.lines([((one_line(session_id), ""),)])
    return DONE


async def prune(sessions: SessionStore, before_ms: int, output: Output, *, yes: bool) -> int:
    """Delete every session that was last written before a time, and that nobody owns; or say which these are.

    What cannot be read is left as it is, with a warning.
    """
    seen = count = 0
    with output.progress("looking for old sessions"):
        async for row in every_row(sessions):
            seen += 1
            output.at(f"looking for old sessions: {seen} seen, {count} {'deleted' if yes else 'found'}")
            try:
                if row.problem is not None:
                    raise row.problem
                if row.last_write >= before_ms or (row.holder.owner is not None and row.holder.lease_left_s > 0):
                    continue
                if yes and not await _delete_unused(sessions, row.session_id, before_ms):
                    continue
            except PersistenceError as error:
                output.warning(f"left as it is: {error}")
                await sessions.list(1)  # if it is not this session but the store that fails, that is the end
                continue
            count += 1
            if output.is_json:
                output.record(row_text(row))
            else:
                output.lines([((one_line(row.session_id), "bold"), (f"  {one_line(title_of(row) or '')}", ""))])
    these = "1 session" if count == 1 else f"{count} sessions"
    told = f"deleted {these}" if yes else f"{these} would be deleted; say --yes to do it"
    output.note((told, "dim"))
    return DONE


async def _delete_unused(sessions: SessionStore, session_id: str, before_ms: int) -> bool:
    """Delete it, unless somebody took or wrote it since it was listed: it is taken first, so that nobody can now."""
    try:
        epoch, log = await sessions.persistence.acquire(session_id, sessions.owner)
    except (SessionHeld, SessionNotFound):
        return False
    if log.ends and log.ends[-1].written_at >= before_ms:
        await sessions.persistence.release(session_id, epoch)
        return False
    await sessions.delete(session_id)
    return True

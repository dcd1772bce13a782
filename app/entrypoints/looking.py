"""`sessions`, `show`, `tail`: what is stored, looked at beside whoever writes it."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Sequence

from app.entrypoints.documents import cursor_of, inspection_text, row_text, title_of
from app.entrypoints.escaping import fitted, one_line
from app.entrypoints.exits import DONE, code_of
from app.entrypoints.output import Line, Output
from app.entrypoints.timeline import event_line, moment, timeline
from app.session.errors import ConfigurationError, NoStore
from app.session.persistence import SessionRow
from app.session.store import SessionStore

POLL_S = 0.2
PAGE = 1000


# ---------------------------------------------------------------------------------------- sessions


async def list_sessions(sessions: SessionStore, limit: int, after: tuple[int, str] | None, output: Output) -> int:
    """A page of the stored sessions, newest first."""
    rows = await sessions.list(limit, after)
    for row in rows:
        if output.is_json:
            output.record(row_text(row))
        if row.problem is not None:
            output.warning(str(row.problem))
    if output.is_json:
        return DONE
    output.lines(_table([row for row in rows if row.problem is None], output.width))
    if len(rows) == limit:
        output.note((f"more: beforehand sessions --after {shlex.quote(one_line(cursor_of(rows[-1])))}", "dim"))
    return DONE


def list_none(why: NoStore, output: Output) -> int:
    """The same where there is no store."""
    if not output.is_json:
        output.lines(_table((), output.width))
    output.note((str(why), "dim"))
    return DONE


def cursor(text: str) -> tuple[int, str]:
    """The place in the list that the end of a page names. Raises ConfigurationError."""
    created_at, colon, session_id = text.partition(":")
    if not (colon and session_id and created_at.isascii() and created_at.isdigit() and len(created_at) < 19):
        raise ConfigurationError(f"--after {text!r} is no place in the list; take it from the end of a page")
    return int(created_at), session_id


def _table(rows: Sequence[SessionRow], width: int) -> Iterator[Line]:
    if not rows:
        yield (("no sessions are stored here", "dim"),)
        return
    ids = [one_line(row.session_id) for row in rows]
    id_width = max(len("session"), min(max(map(len, ids)), max(width - 70, 32)))
    yield ((f"{'session':<{id_width}}  {'created (UTC)':<19}  {'events':>7}  {'owner':<24}  title", "dim"),)
    for row, session_id in zip(rows, ids, strict=True):
        owner = row.holder.owner if row.holder.owner is not None and row.holder.lease_left_s > 0 else None
        title = fitted(title_of(row) or "", max(width - id_width - 58, 10))
        yield (
            (f"{session_id:<{id_width}}", "bold"),
            (f"  {moment(row.created_at):<19}  {row.next_seq:>7}  ", ""),
            (f"{fitted(owner or '-', 24):<24}  ", "yellow" if owner else "dim"),
            (title, ""),
        )


# ---------------------------------------------------------------------------------------- show and tail


async def show(sessions: SessionStore, session_id: str, output: Output, *, full: bool, all_chunks: bool) -> int:
    """The timeline; a damaged log is shown as far as it goes, and its exit code says so."""
    found = await sessions.inspect(session_id)
    if output.is_json:
        output.record(inspection_text(found))
    else:
        output.lines(timeline(found, None if full else output.width, all_chunks=all_chunks))
    if found.problem is None:
        return DONE
    output.error(str(found.problem))
    return code_of(found.problem)


async def tail(
    sessions: SessionStore, session_id: str, seq: int | None, output: Output, *, follow: bool, full: bool
) -> int:
    """Stored events from `seq` on (by default all), and with `follow` those to come, until interrupted."""
    at = seq or 0
    while True:
        events = await sessions.read_from(session_id, at, PAGE)
        for event in events:
            if output.is_json:
                output.record(event.line)
            else:
                output.lines([event_line(event, None if full else output.width)])
        at += len(events)
        if not events:
            if not follow:
                return DONE
            await asyncio.sleep(POLL_S)

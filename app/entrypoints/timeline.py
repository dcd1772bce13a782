"""A session's log as a picture in time: what was recorded, and between the lines when it became durable and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from app.entrypoints.bodies import body, quoted
from app.entrypoints.escaping import fitted, one_line
from app.entrypoints.output import Line
from app.session.batch import BatchEnd
from app.session.errors import LimitExceeded
from app.session.inspection import Inspection
from app.session.record import SessionEvent
from app.session.values import decode

_WHY = {
    "request": "before the model was asked",
    "tool": "before {tools} could act",
    "post-step": "after the step, before it goes on",
    "final": "at the end of the turn",
    "background": "by write-behind, nobody waited",
    "caller": "before the caller was answered",
    "recovery": "by resuming, before anything new",
    "import": "by the import",
    "fork": "by the fork",
}
_STYLES = {"turn/start": "bold", "turn/end": "bold", "user/message": "cyan", "assistant/message": "cyan"}
_SEQ, _TIME, _EVENT = 6, 12, 18
_RULE = 90
_INDENT = 2 + _SEQ + _TIME + 2 + 2


def timeline(found: Inspection, width: int | None, *, all_chunks: bool = False) -> Iterator[Line]:
    """The lines of `show`, free of control characters; what is longer than `width` columns is cut, None cuts nothing.

    Neighbouring chunks are one line, unless `all_chunks`; a line never reaches over a boundary.
    """
    yield from _summary(found, width)
    yield ()
    yield ((f"{'seq':>{_SEQ}}  {'time (UTC)':<{_TIME}}  {'event':<{_EVENT}}  what", "dim"),)
    ends = {end.seq: end for end in found.ends}
    batch: list[SessionEvent] = []
    for event in found.events:
        batch.append(event)
        if event.seq in ends:
            yield from _rows(found, batch, width, all_chunks)
            yield _boundary(batch, ends[event.seq])
            batch = []
    yield from _rows(found, batch, width, all_chunks)
    if found.closers:
        yield ((_rule("not stored: what `beforehand resume` would add"), "yellow"),)
        for closer in found.closers:
            yield event_line(closer, width, mark="+", style="yellow")


def event_line(event: SessionEvent, width: int | None, *, mark: str = "", style: str = "", what: str = "") -> Line:
    """One event: seq, time, type, and its body or `what`."""
    place = f"{mark}{event.seq:>{_SEQ - len(mark)}}"
    room = None if width is None else max(width - _INDENT - max(_EVENT, len(event.type)), 10)
    text = fitted(what or body(event), room)
    row_style = style or _STYLES.get(event.type, "dim" if event.type in ("assistant/chunk", "step/start") else "")
    return (
        (f"{place}  {clock(event.time):<{_TIME}}  ", "dim"),
        (f"{one_line(event.type):<{_EVENT}}  ", row_style),
        (text, row_style),
    )


def clock(time: int) -> str:
    """`17:01:02.123`, UTC, of milliseconds since the epoch."""
    return _utc(time, "%H:%M:%S") + f".{time % 1000:03d}"


def moment(time: int) -> str:
    """`2026-11-30 17:01:02`, UTC."""
    return _utc(time, "%Y-%m-%d %H:%M:%S")


def _utc(time: int, form: str) -> str:
    try:
        return datetime.fromtimestamp(time // 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):  # a stored time may be any number
        return str(time)


# ---------------------------------------------------------------------------------------- the parts


def _summary(found: Inspection, width: int | None) -> Iterator[Line]:
    yield (("session  ", "dim"), (one_line(found.session_id), "bold"))
    yield (("created  ", "dim"), (fitted(_created(found.header_text), width), ""))
    events, batches = len(found.events), len(found.ends)
    yield (("log      ", "dim"), (f"{events} events in {batches} batches, {_condition(found)}", ""))
    yield (("owner    ", "dim"), (holder_text(found.holder.owner, found.holder.lease_left_s), ""))
    yield (("head     ", "dim"), (found.head.hex(), ""))
    if found.torn is not None:
        yield (("torn     ", "dim"), (one_line(found.torn), "yellow"))


def _created(header_text: str) -> str:
    try:
        header = decode(header_text)
    except (ValueError, LimitExceeded):
        return header_text
    if not isinstance(header, dict) or type(header.get("created_at")) is not int:
        return header_text
    parent = header.get("parent")
    forked = f", forked from {parent.get('id')} at seq {parent.get('seq')}" if isinstance(parent, dict) else ""
    return f"{moment(header['created_at'])} UTC{forked}"  # type: ignore[arg-type]  # an int, as just seen


def _condition(found: Inspection) -> str:
    if found.problem is not None:
        return "damaged"
    if not found.closers:
        return "balanced"
    return f"a turn is open: it runs, or resuming closes it with {len(found.closers)} events"


def holder_text(owner: str | None, lease_left_s: float) -> str:
    """Who holds a session."""
    if owner is None:
        return "none, it was released"
    lease = f"lease left {lease_left_s:.1f} s" if lease_left_s > 0 else "its lease has run out"
    return f"{one_line(owner)}, {lease}"


def _rows(found: Inspection, events: Sequence[SessionEvent], width: int | None, all_chunks: bool) -> Iterator[Line]:
    open_calls = {call.seq for call in found.open_calls}
    chunks: list[SessionEvent] = []
    for event in events:
        if event.type == "assistant/chunk" and not all_chunks:
            chunks.append(event)
            continue
        yield from _chunk_row(chunks, width)
        chunks = []
        if event.seq in open_calls:
            yield event_line(event, width, style="bold red", what=f"OPEN, no result: {body(event)}")
        else:
            yield event_line(event, width)
    yield from _chunk_row(chunks, width)


def _chunk_row(chunks: list[SessionEvent], width: int | None) -> Iterator[Line]:
    if len(chunks) == 1:
        yield event_line(chunks[0], width)
    elif chunks:
        what = f"{len(chunks)} chunks, to seq {chunks[-1].seq}: {quoted(''.join(map(_delta, chunks)))}"
        yield event_line(chunks[0], width, what=what)


def _delta(event: SessionEvent) -> str:
    try:
        chunk = event.data["chunk"]
        text = chunk["text"] if chunk["kind"] == "text_delta" else ""
    except (ValueError, KeyError, TypeError, LimitExceeded):  # stored data may be anything
        return ""
    return text if isinstance(text, str) else ""


def _boundary(events: Sequence[SessionEvent], end: BatchEnd) -> Line:
    tools = [_tool_name(event) for event in events if event.type == "tool/call"]
    why = _WHY.get(end.reason, "").format(tools=" and ".join(tools) or "a tool")
    text = f"durable: {one_line(end.reason)} ── {one_line(why)} ── {clock(end.written_at)}"
    return ((_rule(text), "green"),)


def _tool_name(event: SessionEvent) -> str:
    try:
        return str(event.data["name"])[:80]
    except (ValueError, KeyError, LimitExceeded):  # stored data may be anything
        return "a tool"


def _rule(text: str) -> str:
    return f"── {text} ".ljust(_RULE, "─")

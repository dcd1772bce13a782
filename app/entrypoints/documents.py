"""What `--json` prints: one object a line, made of the stored texts as they are."""

from __future__ import annotations

from collections.abc import Iterable

from app.session.errors import LimitExceeded
from app.session.inspection import Inspection
from app.session.persistence import Holder, SessionRow
from app.session.record import SessionEvent
from app.session.values import decode, encode


def events_text(events: Iterable[SessionEvent]) -> str:
    """A JSON array of events, each as the log has it: {seq, type, time, data, ignorable?}."""
    return f"[{','.join(event.line for event in events)}]"


def inspection_text(found: Inspection) -> str:
    """The whole of `show`: id, header, events, batches, closers, open_calls, owner, head, torn, problem."""
    batches = [
        {"last_seq": end.seq, "reason": end.reason, "written_at": end.written_at, "digest": end.digest.hex()}
        for end in found.ends
    ]
    open_calls = [{"call_id": call.id, "name": call.name, "call_seq": call.seq} for call in found.open_calls]
    problem = found.problem and {"code": found.problem.code, "message": str(found.problem)}
    parts = {
        "id": encode(found.session_id),
        "header": _json_or_string(found.header_text),
        "events": events_text(found.events),
        "batches": encode(batches),
        "closers": events_text(found.closers),
        "open_calls": encode(open_calls),
        "owner": encode(holder_json(found.holder)),
        "head": encode(found.head.hex()),
        "torn": encode(found.torn),
        "problem": encode(problem),
    }
    return "{" + ",".join(f'"{name}":{text}' for name, text in parts.items()) + "}"


def holder_json(holder: Holder) -> dict[str, object]:
    """`name` and `lease_left_s` are null when nobody holds the session; the lease is below 0 when it has run out."""
    left = None if holder.owner is None else round(holder.lease_left_s, 3)
    return {"name": holder.owner, "epoch": holder.epoch, "lease_left_s": left}


def row_text(row: SessionRow) -> str:
    """A line of `sessions`; times in milliseconds since the epoch. With a `problem` only id and cursor count."""
    return encode(
        {
            "id": row.session_id,
            "created_at": row.created_at,
            "next_seq": row.next_seq,
            "last_write": row.last_write,
            "owner": holder_json(row.holder),
            "title": title_of(row),
            "cursor": cursor_of(row),
            "problem": row.problem and str(row.problem),
        }
    )


def cursor_of(row: SessionRow) -> str:
    """Where the next page goes on: what `sessions --after` takes."""
    return f"{row.created_at}:{row.session_id}"


def title_of(row: SessionRow) -> str | None:
    """The session's title, if one was recorded."""
    if row.title is None:
        return None
    try:
        data = decode(row.title)
    except ValueError:  # what is stored may be anything
        return None
    title = data.get("title") if isinstance(data, dict) else None
    return title if isinstance(title, str) else None


def _json_or_string(text: str) -> str:
    try:
        return encode(decode(text))
    except (ValueError, LimitExceeded):  # a damaged header may be any text
        return encode(text)

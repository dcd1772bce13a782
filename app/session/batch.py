"""What is stored: a header, and batches of events chained by digests.

The chain starts with the digest of the header's text and goes on over each batch's first seq and bytes, so a batch that
was lost, altered, swapped or copied from elsewhere no longer fits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from app.session.errors import CorruptLog, UnsupportedFormat
from app.session.identifiers import check_id
from app.session.record import SessionEvent
from app.session.values import decode, encode

FORMAT = 1
MAX_TIME = 1 << 63
"""No store keeps a time of this many milliseconds, nor does anybody need it."""

Reason: TypeAlias = Literal[
    "request", "tool", "post-step", "final", "background", "caller", "recovery", "import", "fork"
]
"""Why a batch was written: the reason of the flush that began the write."""


@dataclass(frozen=True, slots=True)
class Header:
    """What is fixed when a session is created: `text` is its JSON text, `created_at` milliseconds since the epoch."""

    id: str
    text: str
    created_at: int
    parent: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None

    @classmethod
    def make(
        cls,
        session_id: str,
        created_at: int,
        parent: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Header:
        """A new header. Raises InvalidId, UnstorableValue."""
        data: dict[str, Any] = {"format": FORMAT, "id": check_id(session_id), "created_at": created_at}
        data |= {} if parent is None else {"parent": parent}
        data |= {} if meta is None else {"meta": meta}
        return cls.read(session_id, encode(data))

    @classmethod
    def read(cls, session_id: str, text: str) -> Header:
        """Read a stored header. Raises UnsupportedFormat (looked at first) and CorruptLog."""
        try:
            data = decode(text)
        except ValueError as error:
            raise CorruptLog(session_id, "the header", str(error)) from None
        if not isinstance(data, dict):
            raise CorruptLog(session_id, "the header", "it is not an object")
        if type(data.get("format")) is not int or data["format"] != FORMAT:
            raise UnsupportedFormat(session_id, encode(data.get("format")))
        parent, meta, created_at = data.get("parent"), data.get("meta"), data.get("created_at")
        if data.get("id") != session_id:
            raise CorruptLog(session_id, "the header", f"it is that of session {data.get('id')!r}")
        if type(created_at) is not int or not 0 <= created_at < MAX_TIME:
            raise CorruptLog(session_id, "the header", "created_at is not a number of milliseconds")
        if not isinstance(parent, dict | None) or not isinstance(meta, dict | None):
            raise CorruptLog(session_id, "the header", "parent or meta is of the wrong kind")
        return cls(session_id, text, created_at, parent, meta)

    @property
    def digest(self) -> bytes:
        """Where the chain of this session's batches starts: 32 bytes."""
        return hashlib.blake2b(self.text.encode("ascii"), digest_size=32).digest()


@dataclass(frozen=True)
class Batch:
    """The events of one write: all of them or none. `previous` is the head digest last acknowledged, 32 bytes."""

    events: tuple[SessionEvent, ...]
    previous: bytes
    reason: Reason

    @property
    def first_seq(self) -> int:
        return self.events[0].seq

    @property
    def next_seq(self) -> int:
        return self.events[-1].seq + 1

    @cached_property
    def digest(self) -> bytes:
        """The head digest once this batch is stored: 32 bytes."""
        return chain(self.previous, self.events)

    @property
    def title(self) -> str | None:
        """The JSON text of the last `session/title` event's data, which the store keeps with the session; else None."""
        return next((event.text for event in reversed(self.events) if event.type == "session/title"), None)

    def check(self) -> None:
        """Raises ValueError for a batch without events or with gaps in itself."""
        if not self.events:
            raise ValueError("a batch holds at least one event")
        first = self.events[0].seq
        if first < 0 or any(event.seq != first + n for n, event in enumerate(self.events)):
            raise ValueError(
                f"the events of a batch follow each other without gaps: {[e.seq for e in self.events][:20]}"
            )


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """Where a stored batch ends: the seq of its last event, why and when (ms) it was written, the digest after it."""

    seq: int
    reason: str
    written_at: int
    digest: bytes


def chain(previous: bytes, events: Sequence[SessionEvent]) -> bytes:
    """The digest after a batch, from the one before it, its first seq and its bytes."""
    digest = hashlib.blake2b(previous, digest_size=32)
    digest.update(events[0].seq.to_bytes(8, "big"))
    for event in events:
        line = event.line.encode("ascii")
        digest.update(len(line).to_bytes(8, "big"))
        digest.update(line)
    return digest.digest()

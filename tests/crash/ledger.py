"""The ledger: what really happened, noted outside of every log by whoever did it, in the order in which it happened."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.llm.types import LlmRequest
from app.session.record import SessionEvent


class Ledger:
    """A file of lines. A note is one write to its end: it outlives its writer, and notes do not mix.

    Noted are: `began`, by every child; `claim`, the epoch that writes; `append`, an event of the live log; `stored`,
    that the store acknowledged everything before `next_seq`; `request`, what the adapter was given; `entered` and
    `acted`, that a body began, and that it took effect; `asked`, that a tool was asked what became of a call;
    `lost`, what the live log of a lost session had come to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, what: str, **details: Any) -> None:
        """Details are JSON values."""
        line = json.dumps({"pid": os.getpid(), "what": what, **details}) + "\n"
        with self._path.open("ab", buffering=0) as file:
            file.write(line.encode())


@dataclass(frozen=True, slots=True)
class Note:
    pid: int
    what: str
    details: dict[str, Any]


def read(path: Path) -> list[Note]:
    """Every note so far, but one that was cut short: its writer ended there."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [Note(line.pop("pid"), line.pop("what"), line) for line in map(json.loads, lines)]


def fingerprint(request: LlmRequest) -> str:
    """The same for equal requests, also when one of them was rebuilt from a log."""
    parts = (request.model, tuple(request.messages), request.system, request.tools, request.temperature)
    return hashlib.sha256(repr((*parts, request.max_tokens, request.stop)).encode()).hexdigest()


def bodies(notes: Sequence[Note]) -> dict[str, tuple[int, int]]:
    """By call id: how often its body was entered, and how often it took effect."""
    calls = dict.fromkeys(note.details["call_id"] for note in notes if note.what == "entered")
    return {call_id: (_count(notes, "entered", call_id), _count(notes, "acted", call_id)) for call_id in calls}


def acknowledged(notes: Sequence[Note]) -> int:
    """How many events the store acknowledged."""
    return max((note.details["next_seq"] for note in notes if note.what == "stored"), default=0)


def appended(notes: Sequence[Note]) -> list[str]:
    """What the live log had, in order, as `digest` gives it."""
    return [note.details["digest"] for note in notes if note.what == "append"]


def digest(event: SessionEvent) -> str:
    """The same for events that are equal byte for byte; short, so that the ledger stays smaller than the store."""
    return hashlib.sha256(event.line.encode()).hexdigest()[:16]


def check_order(notes: Sequence[Note]) -> None:
    """Nothing left this one process before the log durably knew of it: no request, and no call of the model."""
    stored = live = 0
    seqs: dict[str, int] = {}
    for note in notes:
        if note.what == "append":
            assert note.details["seq"] == live
            live += 1
            if note.details["type"] == "tool/call":
                seqs[note.details["call_id"]] = note.details["seq"]
        elif note.what == "stored":
            stored = note.details["next_seq"]
        elif note.what == "request":
            assert stored == live, f"a request left while {live - stored} events were not durable"
        elif note.what == "entered":
            outer = note.details["call_id"].partition(":")[0]
            assert seqs[outer] < stored, f"the body of {outer} was entered before its call was durable"


def _count(notes: Sequence[Note], what: str, call_id: str) -> int:
    return sum(note.what == what and note.details["call_id"] == call_id for note in notes)

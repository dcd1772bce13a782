"""The lines of a session's file: a header, claims, events, and after each batch of events its end.

    {"format":1,"id":"s","created_at":1700000000000}
    {"claim":1,"session":"s","created_at":1700000000000,"token":"5a...","owner":"anna","process":null,
     "lease_until":1700000030000,"end_at":0,"check":"c4..."}
    {"seq":0,"type":"inbox/accepted","time":1700000000000,"data":{...}}
    {"end":0,"reason":"caller","written_at":...,"lease_until":...,"claim_at":49,"title_at":0,"digest":"8d...",
     "check":"1f..."}

A claim is written when the session is created, taken, kept by a renewal, and released (then without token and owner).
It names the offset of the last end before it (0: none), an end that of its claim and of the last title: so the last
line alone leads to everything that is known of a session beside its events. `check` is over the line and the header.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from app.session.batch import Batch, BatchEnd
from app.session.ownership import Epoch, Process
from app.session.record import SessionEvent
from app.session.values import decode, encode

_EVENT = re.compile(r'\{"seq":(\d{1,18}),"type":("(?:[^"\\]|\\.)*"),"time":(-?\d{1,20}),"data":')
_IGNORABLE = ',"ignorable":true}'
_CHECK_LENGTH = len(',"check":"0123456789abcdef"}')


@dataclass(frozen=True, slots=True)
class Claim:
    """Who may write which session. `token`, `owner` and `process` are None once it was released; times are in ms."""

    session_id: str
    created_at: int
    number: int
    token: str | None
    owner: str | None
    process: Process | None
    lease_until: int
    end_at: int

    @classmethod
    def of(cls, session_id: str, created_at: int, epoch: Epoch, now: int, end_at: int) -> Claim:
        """The claim of an epoch."""
        who = epoch.token, epoch.owner.name, epoch.owner.process
        return cls(session_id, created_at, epoch.number, *who, now + lease_ms(epoch), end_at)

    def by(self, epoch: Epoch, now: int, end_at: int) -> Claim:
        """The claim that follows, or that renews this one."""
        return Claim.of(self.session_id, self.created_at, epoch, now, end_at)

    def released(self, now: int, end_at: int) -> Claim:
        """This claim when it has ended."""
        return Claim(self.session_id, self.created_at, self.number, None, None, None, now, end_at)

    def line(self, key: bytes) -> bytes:
        """With its newline, as all lines."""
        process = self.process and {"boot": self.process.boot_id, "pid": self.process.pid, "at": self.process.started}
        data = {"claim": self.number, "session": self.session_id, "created_at": self.created_at, "token": self.token}
        more = {"owner": self.owner, "process": process, "lease_until": self.lease_until, "end_at": self.end_at}
        return _checked(data | more, key)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a batch, and how long its claim may keep its place after it."""

    seq: int
    reason: str
    written_at: int
    lease_until: int
    claim_at: int
    title_at: int
    digest: bytes

    def line(self, key: bytes) -> bytes:
        """With its newline, as all lines."""
        data = {"end": self.seq, "reason": self.reason, "written_at": self.written_at, "lease_until": self.lease_until}
        places = {"claim_at": self.claim_at, "title_at": self.title_at, "digest": self.digest.hex()}
        return _checked(data | places, key)

    @property
    def of_batch(self) -> BatchEnd:
        return BatchEnd(self.seq, self.reason, self.written_at, self.digest)


def lease_ms(epoch: Epoch) -> int:
    """How long its owner keeps its place unheard."""
    return round(epoch.owner.lease_s * 1000)


def batch_lines(batch: Batch, epoch: Epoch, now: int, at: int, claim_at: int, title_at: int, key: bytes) -> bytes:
    """A batch and its end, to be written at that offset. Raises ValueError for text that is more than a line."""
    lines = [event.line.encode("ascii") + b"\n" for event in batch.events]
    for event, line in zip(batch.events, lines, strict=True):
        if not event.text.isprintable():
            raise ValueError(f"the text of event {event.seq} is not what the codec writes")
        title_at = at if event.type == "session/title" else title_at
        at += len(line)
    until = now + lease_ms(epoch)
    end = End(batch.next_seq - 1, batch.reason, now, until, claim_at, title_at, batch.digest)
    return b"".join((*lines, end.line(key)))


def tombstone_line(session_id: str, now: int) -> bytes:
    """All that is left of a deleted session."""
    return _checked({"deleted": session_id, "at": now}, b"")


def parse_event(line: bytes) -> SessionEvent | None:
    """The event that has exactly this line, without its newline; None if none has. Its data may still be no JSON."""
    text = line.decode("ascii", "replace")
    found = _EVENT.match(text) if text.isascii() and text.isprintable() else None
    if found is None:
        return None
    seq, name, time = found.groups()
    ignorable = text.endswith(_IGNORABLE)
    body = text[found.end() : -len(_IGNORABLE) if ignorable else -1]
    type_ = _name(name)
    event = None if type_ is None else SessionEvent(int(seq), int(time), type_, body, ignorable)
    return event if event is not None and event.line == text else None


def parse_mark(line: bytes, key: bytes) -> Claim | End | None:
    """The claim or end on a line without its newline; None if it is none, or its check does not fit."""
    data = _parse_checked(line, key)
    try:
        if data is not None and "end" in data:
            places = data["lease_until"], data["claim_at"], data["title_at"]
            if _are(int, data["end"], data["written_at"], *places) and _are(str, data["reason"], data["digest"]):
                digest = bytes.fromhex(data["digest"])
                return End(data["end"], data["reason"], data["written_at"], *places, digest)
        elif data is not None:
            found, names = data["process"], (data["token"], data["owner"])
            process = found and Process(found["boot"], found["pid"], found["at"])
            numbers = data["created_at"], data["claim"], data["lease_until"], data["end_at"]
            if _are(int, *numbers) and _are(str, data["session"]) and (names == (None, None) or _are(str, *names)):
                created_at, number, until, end_at = numbers
                return Claim(data["session"], created_at, number, *names, process, until, end_at)
    except (KeyError, TypeError, ValueError):  # whoever wrote it knew the check, but not what a mark holds
        pass
    return None


def parse_tombstone(line: bytes) -> str | None:
    """The id of the deleted session; None if the line is no tombstone."""
    data = _parse_checked(line, b"")
    found = None if data is None else data.get("deleted")
    return found if type(found) is str else None


# -- inside --------------------------------------------------------------------------------------


def _checked(data: dict[str, Any], key: bytes) -> bytes:
    text = encode(data).encode("ascii")[:-1]
    return b'%b,"check":"%b"}\n' % (text, _check(text, key))


def _parse_checked(line: bytes, key: bytes) -> dict[str, Any] | None:
    text, check = line[:-_CHECK_LENGTH], line[-_CHECK_LENGTH:]
    if not text.startswith((b'{"end":', b'{"claim":', b'{"deleted":')):
        return None
    if check != b',"check":"%b"}' % _check(text, key):
        return None
    data = decode(text.decode("ascii") + "}")
    return data if isinstance(data, dict) else None


def _check(text: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=8, key=key).hexdigest().encode("ascii")


def _are(kind: type, *values: object) -> bool:
    return all(type(value) is kind for value in values)


@lru_cache(maxsize=256)
def _name(text: str) -> str | None:
    try:
        name = decode(text)
    except ValueError:  # no JSON string
        return None
    return name if type(name) is str else None

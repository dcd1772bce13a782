"""Where a log stands: the open turn and step, the calls without a result, the inbox, the call ids used."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from app.session.events import JsonObject, Placement
from app.session.values import decode

State: TypeAlias = str
IDLE, OPENING, TURN, REQUEST, CALLS, DONE = STATES = ("IDLE", "OPENING", "TURN", "REQUEST", "CALLS", "DONE")


@dataclass(frozen=True, slots=True)
class Pending:
    """An accepted message that no turn has taken yet. `message` is its JSON text."""

    id: str
    message: str
    placement: Placement

    @property
    def value(self) -> JsonObject:
        """The message as a fresh object."""
        value: JsonObject = decode(self.message)  # type: ignore[assignment]  # only objects are accepted
        return value


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call of the open step's assistant message; `seq` is that of its tool/call, None while there is none."""

    id: str
    name: str
    arguments: str
    seq: int | None = None
    effects: str | None = None


class TurnState(NamedTuple):  # of which a changed copy is made for each chunk: a dataclass takes five times as long
    """Where in a turn the log stands. `started` and `answered` count the calls that have a tool/call and a result."""

    state: State = IDLE
    turn: int = 0
    step: int = 0
    announced: tuple[str, ...] = ()
    calls: tuple[OpenCall, ...] = ()
    started: int = 0
    answered: int = 0
    chunks: tuple[tuple[int, int], ...] = ()
    has_header: bool = False
    is_interrupted: bool = False
    may_retry: bool = False

    @property
    def open_calls(self) -> tuple[OpenCall, ...]:
        """The calls without a result, in the order of the message."""
        return self.calls[self.answered :]


class LogState:
    """The fold of a log: the turn state, the inbox, and the call ids used; app.session.grammar advances it."""

    def __init__(self) -> None:
        self.turn = TurnState()
        self.pending: Mapping[str, Pending] = {}
        self.accepted: dict[str, bytes] = {}
        self.call_ids: dict[str, None] = {}
        self.header: str | None = None
        self.length = 0

    def snapshot(self) -> tuple[Any, ...]:
        """What `restore` needs to take later advances back; costs nothing that grows with the log."""
        return (self.turn, self.pending, len(self.accepted), len(self.call_ids), self.header, self.length)

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        self.turn, self.pending, accepted, call_ids, self.header, self.length = snapshot
        while len(self.accepted) > accepted:
            self.accepted.popitem()
        while len(self.call_ids) > call_ids:
            self.call_ids.popitem()

    def is_same_message(self, message_id: str, message: str, placement: str) -> bool:
        """Whether the accepted message of this id had this JSON text and placement."""
        return self.accepted[message_id] == fingerprint(message, placement)

    def pending_of(self, *placements: Placement) -> tuple[Pending, ...]:
        """The pending messages of these placements, in order of acceptance."""
        return tuple(entry for entry in self.pending.values() if entry.placement in placements)


def fingerprint(message: str, placement: str) -> bytes:
    """What is kept of an accepted message to know it again."""
    return hashlib.blake2b(f"{placement} {message}".encode("ascii"), digest_size=16).digest()

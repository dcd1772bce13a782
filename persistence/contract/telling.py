"""Writing in another process, and what is known of a session from what that process told."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from app.session.batch import Batch, Header, Reason
from app.session.errors import CorruptLog, SessionNotFound
from app.session.ownership import Epoch
from app.session.persistence import SessionPersistence, StoredLog
from app.session.record import SessionEvent
from app.session.verification import verify
from persistence.contract.processes import Line
from persistence.contract.samples import CREATED_AT, Writer, message, messages, owner, title

REASONS: tuple[Reason, ...] = ("request", "tool", "post-step", "final", "background", "caller")


@dataclass
class Known:
    """What is known of a session: the batches that were acknowledged, and the one of which nobody knows.

    `epoch` is the newest that anybody said it was given.
    """

    session_id: str
    batches: list[Batch] = field(default_factory=list)
    unknown: Batch | None = None
    epoch: int = 0

    @property
    def header(self) -> Header:
        return Header.make(self.session_id, CREATED_AT)

    @property
    def acknowledged(self) -> int:
        """How many events."""
        return sum(len(batch.events) for batch in self.batches)

    def sent(self, batch: Batch) -> None:
        if self.unknown is not None and batch.previous == self.unknown.digest:
            self.batches.append(
                self.unknown
            )  # a server may do what a dead process asked, until somebody else takes over
        self.unknown = batch

    def stored(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.unknown = None

    def claimed(self, epoch: int) -> list[str]:
        """A claim was given out. What is wrong with its number."""
        newest, self.epoch = self.epoch, max(self.epoch, epoch)
        return [] if epoch > newest else [f"{self.session_id}: epoch {epoch} was given out, and {newest} before it"]

    def hear(self, words: tuple[object, ...]) -> list[str]:
        """Take in what `take` and `send` said. What is wrong with it."""
        match words:
            case ("sent", _, Batch() as batch):
                self.sent(batch)
            case ("stored", *_) if self.unknown is not None:
                self.stored(self.unknown)
            case ("claimed", _, int(epoch)):
                return self.claimed(epoch)
            case other:
                raise AssertionError(f"nobody says {other}")
        return []

    def compare(self, log: StoredLog | None) -> list[str]:
        """What is wrong with a log, None if there is none. If it is well, and holds what was unknown, that is known."""
        if log is None:
            return [f"{self.session_id} is gone"] if self.batches else []
        try:
            verify(log, {})
        except CorruptLog as error:
            return [str(error)]
        found: list[tuple[int, str, bytes]] = [(end.seq, end.reason, end.digest) for end in log.ends]
        possible = self.batches if self.unknown is None else [*self.batches, self.unknown]
        expected = [(batch.next_seq - 1, batch.reason, batch.digest) for batch in possible]
        texts = [event for batch in possible for event in batch.events][: len(log.events)]
        if not len(self.batches) <= len(found) <= len(possible) or found != expected[: len(found)]:
            ends, promised = [end for end, *_ in found], [end for end, *_ in expected]
            told = f"holds batches up to {ends[-5:]} of {promised[-5:]}, {len(self.batches)} of them acknowledged"
            return [f"{self.session_id} {told}"]
        if (log.header_text, list(log.events)) != (self.header.text, texts):
            return [f"{self.session_id} holds other bytes than were acknowledged"]
        if log.holder.epoch < self.epoch:
            return [f"{self.session_id} is at epoch {log.holder.epoch}, though {self.epoch} was given out"]
        if len(found) > len(self.batches):
            self.batches, self.unknown = possible, None
        return []


# ---------------------------------------------------------------------------------------- in the other process


async def take(store: SessionPersistence, line: Line, session_id: str) -> Writer:
    """The writer of a session under a new claim, taken by force and closed as recovery does; of a new one else."""
    writer = Writer.new(store, session_id)
    closing: list[Batch] = []

    def close(log: StoredLog, epoch: Epoch) -> Batch:
        closing[:] = [Batch(messages(log.next_seq, 2), log.head, "recovery")]
        line.say("sent", session_id, *closing)
        return closing[0]

    try:
        epoch, log = await store.acquire(session_id, owner("another"), force=True, repair=close)
    except SessionNotFound:
        return writer
    line.say("stored", session_id)
    line.say("claimed", session_id, epoch.number)
    return Writer(store, writer.header, epoch, closing[0].digest, [*log.events, *closing[0].events])


def draw(writer: Writer, lots: random.Random) -> Batch:
    """The next batch: of few events or many, now and then of a size that no store writes at once."""
    events: list[SessionEvent] = []
    for seq in range(writer.seq, writer.seq + lots.choice([1, 1, 2, 3, 20])):
        size = lots.choice([6, 6, 60, 1_000, 1_000, 10_000, 100_000])
        events.append(title(seq, f"title {seq}") if lots.random() < 0.1 else message(seq, "\u20ac" * (size // 6)))
    return writer.batch(reason=lots.choice(REASONS), events=events)


async def send(writer: Writer, line: Line, batch: Batch) -> None:
    """Store a batch, and tell before and after."""
    line.say("sent", writer.id, batch)
    await writer.send(batch)
    line.say("stored", writer.id)

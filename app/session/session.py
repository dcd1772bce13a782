"""A live session: a log that only grows, checked at every append, telling its observers afterwards."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from app.messages import Message
from app.session import events as ev
from app.session.batch import Header
from app.session.errors import IllegalEvent, LimitExceeded, PersistenceError, ReentrantAppend, SessionNotLive
from app.session.grammar import advance
from app.session.log_state import IDLE, LogState
from app.session.ownership import Epoch
from app.session.record import SessionEvent, parse, to_json
from app.session.unknown_calls import UnknownCalls
from app.session.values import ValueLimits, decode, encode
from app.session.verification import Fold

logger = logging.getLogger(__name__)

Observer: TypeAlias = Callable[[SessionEvent | ev.Notice], None]

_LEAVES_NO_TURN_OPEN = frozenset(["tool/call", *ev.CLOSING])


@dataclass(frozen=True, slots=True)
class LogLimits:
    """What `append` refuses: an event's stored bytes, a log's length in events, values by depth and digits."""

    max_event_bytes: int = 16 * 1024 * 1024
    max_session_events: int = 1_000_000
    values: ValueLimits = field(default_factory=ValueLimits)


class Session:
    """One append-only log, live in this process. `SessionStore` makes and releases it; it belongs to one thread.

    `durable` counts the events known to be stored, `lost` is the error that ended this process's writing, if any.
    `closers` are the events that recovery added when it was resumed.
    """

    def __init__(
        self,
        header: Header,
        epoch: Epoch,
        clock: Callable[[], int],
        *,
        events: Iterable[SessionEvent] = (),
        fold: Fold | None = None,
        closers: tuple[SessionEvent, ...] = (),
        extensions: Mapping[str, ev.ExtensionType] | None = None,
        limits: LogLimits | None = None,
    ) -> None:
        self.header = header
        self.epoch = epoch
        self.closers = closers
        self.lost: PersistenceError | None = None
        self.is_live = True
        self.on_append: Callable[[], None] = lambda: None
        self.on_lost: list[Callable[[PersistenceError], None]] = []
        self._clock = clock
        self._fold = fold or Fold()
        self._events = list(events)
        self.durable = len(self._events)
        self._group_ends: deque[int] = deque()
        self._extensions = extensions or {}
        self._limits = limits or LogLimits()
        self._observers: list[Observer] = []
        self._waiting: deque[_Publication] | None = None
        self._thread = threading.get_ident()

    # ---------------------------------------------------------------------------------------- reading

    @property
    def id(self) -> str:
        return self.header.id

    @property
    def events(self) -> tuple[SessionEvent, ...]:
        """The log as it is now; a copy of its length."""
        return tuple(self._events)

    def events_from(self, seq: int, before: int | None = None) -> list[SessionEvent]:
        """The events from `seq` up to, not including, `before`; a copy of that length only."""
        return self._events[seq:before]

    def __len__(self) -> int:
        return len(self._events)

    @property
    def is_lost(self) -> bool:
        """Whether this process can never write to the session again."""
        return self.lost is not None

    @property
    def state(self) -> LogState:
        """Where the log stands. Only the log may change it."""
        return self._fold.state

    @property
    def messages(self) -> tuple[Message, ...]:
        """What the model sees of the log so far."""
        return self._fold.history.messages

    @property
    def unknown_calls(self) -> UnknownCalls:
        return self._fold.unknown_calls

    def __repr__(self) -> str:
        turn = self.state.turn
        where = "idle" if turn.state == IDLE else f"turn {turn.turn} step {turn.step} open"
        lost = f", {self.lost.code}" if self.lost else "" if self.is_live else ", released"
        return f"<Session {self.id[:8]}: {len(self)} events, {self.durable} durable, {where}{lost}>"

    # ---------------------------------------------------------------------------------------- appending

    def append(self, *data: ev.EventData) -> tuple[SessionEvent, ...]:
        """Record a group of events: all, or none and an error. Never waits; observers are told before it returns.

        Raises SessionNotLive, the error of a lost session, ReentrantAppend (called by an observer), IllegalEvent,
        UnstorableValue, LimitExceeded.
        """
        self._check_usable(data)
        if self._waiting is not None:
            raise ReentrantAppend(self.id)
        group = self._take_in(data)
        self._publish(_Publication(events=group))
        return group

    def append_in_turn(self, *data: ev.EventData) -> None:
        """As `append`; while observers are being told, checked at once and recorded right after that, in call order."""
        if self._waiting is None:
            self.append(*data)
            return
        self._check_usable(data)
        self._waiting.append(_Publication(events=self._take_in(data)))

    def notify(self, notice: ev.Notice) -> None:
        """Tell the observers something that is no event."""
        if self._waiting is None:
            self._publish(_Publication(notice=notice))
        else:
            self._waiting.append(_Publication(notice=notice))

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Have `observer` told of each later event and notice; what it raises is logged. Returns what ends that."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def check_thread(self) -> None:
        """Raises RuntimeError in any thread but the one that this session belongs to."""
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                f"session {self.id!r} belongs to its event loop's thread; in a tool body use execution.inject or steer"
            )

    def check_usable(self) -> None:
        """Raises what keeps every event out: SessionNotLive, or the error of a lost session."""
        if not self.is_live:
            raise SessionNotLive(self.id)
        if self.lost is not None:
            raise self.lost

    def _check_usable(self, data: Iterable[ev.EventData]) -> None:
        self.check_thread()
        if not self.is_live or any(event.type not in _LEAVES_NO_TURN_OPEN for event in data):
            self.check_usable()

    def _take_in(self, data: tuple[ev.EventData, ...]) -> tuple[SessionEvent, ...]:
        if not data:
            raise ValueError("append needs at least one event")
        before = self.state.snapshot()
        group: list[tuple[ev.EventData, SessionEvent]] = []
        try:
            for event in data:
                group.append(self._record(event))
        except BaseException:  # whatever it was: all of the group, or nothing
            self.state.restore(before)
            raise
        for event, recorded in group:
            self._fold.add(event, recorded)
        return tuple(recorded for _, recorded in group)

    def _record(self, data: ev.EventData) -> tuple[ev.EventData, SessionEvent]:
        ignorable = False
        if isinstance(data, ev.Extension):
            declared = self._extensions.get(data.type)
            if declared is None:
                raise IllegalEvent(self.state.turn.state, data.type, "this extension type is not declared")
            ignorable = declared.ignorable
        seq, before = self.state.length, self.state.snapshot()
        advance(self.state, data)
        text = encode(to_json(data), self._limits.values)
        if "\\ud" in text and data.type in ev.CATALOGUE:  # halves of a pair become the character that is stored
            data = parse(data.type, decode(text))  # type: ignore[arg-type]  # an object, as it was
            self.state.restore(before)
            advance(self.state, data)
        event = SessionEvent(seq, self._clock(), data.type, text, ignorable)
        self._check_limits(event)
        return data, event

    def _check_limits(self, event: SessionEvent) -> None:
        limits = self._limits
        if event.type not in ev.CLOSING and event.seq >= limits.max_session_events:
            raise LimitExceeded("max_session_events", limits.max_session_events, event.seq + 1)
        if len(event.text) + 1000 > limits.max_event_bytes and len(event.line) > limits.max_event_bytes:
            raise LimitExceeded("max_event_bytes", limits.max_event_bytes, len(event.line))

    def _publish(self, publication: _Publication) -> None:
        self._waiting = deque([publication])
        try:
            while self._waiting:
                self._enter(self._waiting[0].events)
                told = self._waiting.popleft()
                for subject in told.subjects:
                    for observer in tuple(self._observers):
                        self._tell(observer, subject)
        finally:
            waiting, self._waiting = self._waiting, None
            for left in waiting:  # an observer ended the process's day (KeyboardInterrupt): nothing accepted is lost
                self._enter(left.events)

    def _enter(self, events: tuple[SessionEvent, ...]) -> None:
        if events:
            self._events.extend(events)
            self._group_ends.append(len(self._events))
            self.on_append()

    def _tell(self, observer: Observer, subject: SessionEvent | ev.Notice) -> None:
        try:
            observer(subject)
        except Exception:  # an observer is foreign code and can undo nothing: contained, said once, the others go on
            logger.exception("an observer of session %s failed on %r", self.id, subject)

    # ---------------------------------------------------------------------------------------- being stored

    def next_batch(self, max_events: int, max_bytes: int) -> tuple[SessionEvent, ...]:
        """The pending events that the next write takes: whole groups, at least one, within the limits otherwise."""
        end, size, start = self.durable, 0, self.durable
        for group_end in self._group_ends:
            size += sum(len(event.text) for event in self._events[end:group_end])
            if end > start and (group_end - start > max_events or size > max_bytes):
                break
            end = group_end
        return tuple(self._events[start:end])

    def mark_durable(self, next_seq: int) -> None:
        """Everything before `next_seq` is stored."""
        self.durable = next_seq
        while self._group_ends and self._group_ends[0] <= next_seq:
            self._group_ends.popleft()


@dataclass(frozen=True, slots=True)
class _Publication:
    """What observers are to be told: a group of events once it is in the log, or a notice."""

    events: tuple[SessionEvent, ...] = ()
    notice: ev.Notice | None = None

    @property
    def subjects(self) -> tuple[SessionEvent | ev.Notice, ...]:
        return self.events if self.notice is None else (self.notice,)

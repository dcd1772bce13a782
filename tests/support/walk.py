"""Where a legal log stands, and what may come next, by an account of its own.

Of app.session.grammar it uses the table alone, so that the rest can be tested against it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from app.session import events as ev
from app.session.grammar import TABLE

EXTENSION: Final = "an extension"
"""Stands for every extension type where a walk says what may come."""


class Walk:
    """A log that grows by one legal event at a time. `events` is the log, the rest is where it stands."""

    def __init__(self) -> None:
        self.events: list[ev.EventData] = []
        self.state = "IDLE"
        self.turn = 0
        self.step = 0
        self.pending: dict[str, ev.InboxAccepted] = {}
        self.announced: list[str] = []
        self.calls: list[ev.JsonObject] = []
        self.called: dict[str, int] = {}
        self.answered = 0
        self.nested: Counter[str] = Counter()
        self.chunks: list[tuple[int, ev.JsonObject]] = []
        self.has_header = False
        self.is_interrupted = False
        self.may_retry = False
        self.retries = 0
        self.is_skipping = False

    def may_come(self) -> list[str]:
        """The types of which some event is legal here."""
        types = [type for type, follow in TABLE.items() if self.state in follow and self._can(type)]
        return [*types, "inbox/accepted", *(["inbox/discarded"] if self.free() else []), EXTENSION]

    def free(self) -> list[str]:
        """The ids that may be discarded or announced: accepted, and neither announced nor taken nor discarded."""
        return [id for id in self.pending if id not in self.announced]

    def free_of(self, *placements: ev.Placement) -> list[str]:
        return [id for id in self.free() if self.pending[id].placement in placements]

    def running(self) -> list[str]:
        """The calls that have a tool/call and no result."""
        return [call["id"] for call in self.calls[self.answered :] if call["id"] in self.called]

    def ranges(self) -> list[list[int]]:
        """The step's chunks as an assistant/message cites them."""
        ranges: list[list[int]] = []
        for seq, _ in self.chunks:
            if ranges and ranges[-1][1] == seq - 1:
                ranges[-1][1] = seq
            else:
                ranges.append([seq, seq])
        return ranges

    def _can(self, type: str) -> bool:
        match type:
            case "turn/start":
                return bool(self.free_of("next_turn", "next_step"))
            case "user/message" if self.state != "OPENING":
                return not self.is_interrupted and bool(self.free_of("context", "next_step"))
            case "request/header":
                return not self.has_header and not self.chunks
            case "tool/call":  # once a call was closed as never started, so are those after it: nobody writes otherwise
                return len(self.called) < len(self.calls) and not self.is_skipping
            case "tool/nested":
                return bool(self.running())
            case "llm/retry":
                return self.may_retry
        return True

    # ---------------------------------------------------------------------------------------- accounting

    def take(self, event: ev.EventData) -> ev.EventData:
        """Have a legal event in the log."""
        before, seq = self.state, len(self.events)
        self.events.append(event)
        match event:
            case ev.InboxAccepted():
                self.pending[event.message["id"]] = event
            case ev.InboxDiscarded():
                self.pending = {id: accepted for id, accepted in self.pending.items() if id not in event.ids}
            case ev.TurnStart():
                self.turn, self.step, self.announced, self.state = event.turn, 0, list(event.input), "OPENING"
            case ev.UserMessage():
                del self.pending[event.message["id"]]
                self.may_retry = False
                if before == "OPENING":
                    self.announced.pop(0)
                    self.state = "OPENING" if self.announced else "TURN"
            case ev.StepStart():
                self._start_step(event.step)
            case ev.RequestHeader():
                self.has_header = True
            case ev.AssistantChunk():
                self.chunks.append((seq, event.chunk))
            case ev.AssistantMessage():
                self.calls, self.is_interrupted = event.calls, event.interrupted is True
                self.state = "CALLS" if self.calls else "DONE"
            case ev.ToolCall():
                self.called[event.call_id] = seq
            case ev.ToolNested():
                self.nested[event.parent_call_id] += 1
            case ev.ToolResult():
                self.answered += 1
                self.is_skipping = self.is_skipping or event.call_seq is None
                self.state = "DONE" if self.answered == len(self.calls) else "CALLS"
            case ev.StepEnd():
                self.state, self.may_retry, self.is_interrupted = "TURN", before == "REQUEST", False
                self.retries = self.retries if self.may_retry else 0
            case ev.LlmRetry():
                self.may_retry, self.retries = False, self.retries + 1
            case ev.TurnEnd():
                self.state, self.announced, self.may_retry, self.retries = "IDLE", [], False, 0
        if event.type in TABLE:
            assert self.state in TABLE[event.type][before]
        return event

    def _start_step(self, step: int) -> None:
        self.state, self.step = "REQUEST", step
        self.calls, self.called, self.answered, self.chunks = [], {}, 0, []
        self.has_header = self.is_interrupted = self.may_retry = self.is_skipping = False
        self.nested.clear()

"""Legal logs at random, with event data such as the runtime writes: balanced, or cut short anywhere as by a crash.

`legal_logs()` and `walks()` are for hypothesis, `random_walk(seed, length)` is the same without it. What makes a log or
a session of the event data is in tests.support.recording.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from hypothesis import strategies as st

from app.session import events as ev
from app.session.grammar import TABLE
from tests.support.recording import EXTENSIONS
from tests.support.walk import EXTENSION, Walk

T = TypeVar("T")

TEXTS = ("a", "two words", "é😀", "\0", "\udc81", '"}\\')
CONTENTS: tuple[Any, ...] = (
    "go",
    "\0 \udc81 😀",
    [{"type": "text", "text": "a"}, {"type": "image", "data": [1, 1.0, None]}],
)
VALUES: tuple[Any, ...] = ("done", None, {"b": 1, "a": [1.0, -0.0, 2**64]}, [], "", True)
RESULT_CODES = (
    *("TOOL_FAILED", "ABORTED_BEFORE_DISPATCH", "ABORTED", "TOOL_TIMEOUT", "CHECKPOINT_FAILED"),
    *("TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED", "NO_STOCK"),
)
WEIGHTS = {
    "turn/start": 8,
    "user/message": 5,
    "step/start": 8,
    "request/header": 3,
    "assistant/chunk": 6,
    "assistant/message": 6,
    "tool/call": 8,
    "tool/nested": 2,
    "tool/result": 6,
    "step/end": 4,
    "llm/retry": 8,
    "turn/end": 2,
    "inbox/accepted": 2,
}
"""How often a type is chosen where it may come; 1 for the others."""


class Choose(Protocol):
    """Takes one of the options; the first is the plainest."""

    def __call__(self, options: Sequence[T], /) -> T: ...


class RandomWalk(Walk):
    """A walk that chooses what comes next, and makes it up."""

    def __init__(self, choose: Choose) -> None:
        super().__init__()
        self._choose = choose
        self._made: Counter[str] = Counter()

    def go(self) -> ev.EventData:
        """Take one step at random."""
        types = self.may_come()
        return self.take(self.make(self._choose([type for type in types for _ in range(WEIGHTS.get(type, 1))])))

    def finish(self) -> None:
        """Close the open turn, if there is one, in the shortest way that the loop has."""
        while self.state != "IDLE":
            self.take(self.make(_CLOSING[self.state]))

    def make(self, type: str) -> ev.EventData:
        """An event of a type that may come; the walk stays where it is."""
        return _MAKE[type](self)

    # ---------------------------------------------------------------------------------------- event data

    def _number(self, of: str) -> int:
        self._made[of] += 1
        return self._made[of]

    def _some(self, options: Sequence[T]) -> list[T]:
        """Some of them, at least one, in their order."""
        return [option for option in options if self._choose((True, False))] or list(options[:1])

    def _accepted(self) -> ev.EventData:
        placement: ev.Placement = self._choose(("next_turn", "next_turn", "context", "next_step"))
        message: ev.JsonObject = {"id": f"m{self._number('message')}", "content": self._choose(CONTENTS)}
        return ev.InboxAccepted(message | self._choose(({}, {"meta": {"from": "\0😀"}})), placement)

    def _discarded(self) -> ev.EventData:
        return ev.InboxDiscarded(self._some(self.free()), self._choose(("user", "shutdown")))

    def _turn_start(self) -> ev.EventData:
        contexts = [id for id in self.free_of("context") if self._choose((True, True, False))]
        return ev.TurnStart(self.turn + 1, [*contexts, self._choose(self.free_of("next_turn", "next_step"))])

    def _user_message(self) -> ev.EventData:
        id = self.announced[0] if self.announced else self._choose(self.free_of("context", "next_step"))
        return ev.UserMessage(self.turn, self.pending[id].message, self.pending[id].placement)

    def _step_begin(self) -> ev.EventData:
        return ev.StepStart(self.turn, self.step + 1)

    def _header(self) -> ev.EventData:
        is_first = not any(isinstance(event, ev.RequestHeader) for event in self.events)
        reason: Literal["initial", "resume", "change"] = "initial" if is_first else self._choose(("change", "resume"))
        config: ev.JsonObject = {"adapter": "script", "model": self._choose(("test", "other"))}
        config |= self._choose(({}, {"temperature": 0.5}, {"max_tokens": 100, "stop": ["END"]}))
        tools = self._choose(([], [{"name": "read", "description": "", "schema": {"type": "object"}}]))
        return ev.RequestHeader(self.turn, self.step, reason, config, tools, system=self._choose((None, "Be brief.")))

    def _chunk(self) -> ev.EventData:
        text = self._choose(TEXTS)
        chunk: ev.JsonObject = self._choose(
            (
                {"kind": "text_delta", "index": 0, "text": text},
                {"kind": "reasoning_delta", "index": 1, "text": text},
                {"kind": "tool_call_delta", "index": 2, "arguments": text, "id": "c", "name": "read"},
                {"kind": "usage", "usage": {"input_tokens": 7}},
            )
        )
        return ev.AssistantChunk(self.turn, self.step, chunk)

    def _message(self) -> ev.EventData:
        spoken = self._spoken()
        has_text = any(block["type"] == "text" for block in spoken)
        if self._choose(TABLE["assistant/message"][self.state]) == "CALLS":
            calls = [self._call_block() for _ in range(self._choose((1, 2, 3, 4)))]
            return self._answer([*spoken, *calls], "tool_calls")
        kind = self._choose(("plain", "interrupted", "cut short"))
        if kind == "cut short":
            return self._answer(spoken, "max_tokens")
        if kind == "interrupted" and has_text:
            return self._answer(spoken, "aborted", interrupted=True)
        return self._answer(spoken if has_text else [*spoken, {"type": "text", "text": "ok"}], "stop")

    def _answer(
        self, content: list[ev.JsonObject], finish: str, interrupted: Literal[True] | None = None
    ) -> ev.EventData:
        return ev.AssistantMessage(
            self.turn,
            self.step,
            content,
            self.ranges(),
            {"adapter": "script", "model": "test"},
            finish,
            usage=self._choose((None, {"output_tokens": 3})),
            replay_state=self._choose((ev.ABSENT, None, {"opaque": [1]})),
            interrupted=interrupted,
        )

    def _spoken(self) -> list[ev.JsonObject]:
        """What the chunks come to, without the calls."""
        spoken = []
        for kind, type in (("text_delta", "text"), ("reasoning_delta", "reasoning")):
            text = "".join(chunk["text"] for _, chunk in self.chunks if chunk["kind"] == kind)
            spoken += [{"type": type, "text": text}] if text else []
        return spoken

    def _call_block(self) -> ev.JsonObject:
        id = f"c{self._number('call')}" + self._choose(("", " of \0", "#1.1.0"))
        arguments = self._choose(("{}", '{"a": 1}', "not JSON", ""))
        return {"type": "tool_call", "id": id, "name": self._choose(("read", "write")), "arguments": arguments}

    def _tool_call(self) -> ev.EventData:
        call = self.calls[len(self.called)]
        effects: Literal["side_effect", "read_only", "idempotent"]
        effects = self._choose(("side_effect", "read_only", "idempotent"))
        return ev.ToolCall(self.turn, self.step, call["id"], call["name"], call["arguments"], effects)

    def _tool_nested(self) -> ev.EventData:
        parent = self._choose(self.running())
        id = f"{parent}:{self.nested[parent] + 1}"
        error = self._choose((None, {"code": "DENIED", "message": "no"}))
        return ev.ToolNested(self.turn, self.step, parent, id, "read", '{"n": 1}', error is not None, error=error)

    def _tool_result(self) -> ev.EventData:
        id = self.calls[self.answered]["id"]
        seq = self.called.get(id)
        if seq is not None and self._choose((True, True, False)):
            reconciled: Literal[True] | None = self._choose((None, None, True))
            value = self._choose(VALUES)
            return ev.ToolResult(self.turn, self.step, id, seq, False, value=value, reconciled=reconciled)
        code = "TOOL_NOT_STARTED" if seq is None else self._choose(RESULT_CODES)
        error = {"code": code, "message": self._choose(TEXTS)}
        return ev.ToolResult(self.turn, self.step, id, seq, True, error=error)

    def _step_finish(self) -> ev.EventData:
        return ev.StepEnd(self.turn, self.step)

    def _retry(self) -> ev.EventData:
        failure = {"message": "busy", "code": "RATE_LIMIT", "retry_after_ms": 10}
        return ev.LlmRetry(self.turn, self.step, self.retries + 1, 500, failure, max_retries=self._choose((None, 2)))

    def _turn_finish(self) -> ev.EventData:
        if self.state == "OPENING":
            return ev.TurnEnd(self.turn, "interrupted")
        return self._choose(
            (
                ev.TurnEnd(self.turn, "completed"),
                ev.TurnEnd(self.turn, "max_tokens"),
                ev.TurnEnd(self.turn, "aborted", cause="user"),
                ev.TurnEnd(
                    self.turn, "error", error={"message": "busy", "code": "RATE_LIMIT", "step": max(self.step, 1)}
                ),
                ev.TurnEnd(self.turn, "interrupted"),
            )
        )

    def _extension(self) -> ev.EventData:
        return ev.Extension(self._choose(EXTENSIONS), {"n": self._number("extension")})


_CLOSING = {
    "OPENING": "user/message",
    "TURN": "turn/end",
    "REQUEST": "step/end",
    "CALLS": "tool/result",
    "DONE": "step/end",
}
_MAKE: Mapping[str, Callable[[RandomWalk], ev.EventData]] = {
    "inbox/accepted": RandomWalk._accepted,
    "inbox/discarded": RandomWalk._discarded,
    "turn/start": RandomWalk._turn_start,
    "user/message": RandomWalk._user_message,
    "step/start": RandomWalk._step_begin,
    "request/header": RandomWalk._header,
    "assistant/chunk": RandomWalk._chunk,
    "assistant/message": RandomWalk._message,
    "tool/call": RandomWalk._tool_call,
    "tool/nested": RandomWalk._tool_nested,
    "tool/result": RandomWalk._tool_result,
    "step/end": RandomWalk._step_finish,
    "llm/retry": RandomWalk._retry,
    "turn/end": RandomWalk._turn_finish,
    EXTENSION: RandomWalk._extension,
}


def random_walk(seed: int, length: int) -> RandomWalk:
    """A walk of so many events, the same for the same seed."""
    chance = random.Random(seed)
    walk = RandomWalk(chance.choice)
    for _ in range(length):
        walk.go()
    return walk


def walks(min_events: int = 0, max_events: int = 40) -> st.SearchStrategy[RandomWalk]:
    """Walks of so many events. A seed stands for all choices: they spread well, and a shorter walk is a prefix."""
    return st.builds(random_walk, st.integers(0, 2**32 - 1), st.integers(min_events, max_events))


def legal_logs(min_events: int = 0, max_events: int = 40) -> st.SearchStrategy[tuple[ev.EventData, ...]]:
    """Logs of so many events that may end anywhere."""
    return walks(min_events, max_events).map(lambda walk: tuple(walk.events))

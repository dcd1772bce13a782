"""A model that follows a script: for tests, for the demo, and for the tests of those who build on this.

From Python::

    ScriptedAdapter([say("Hello", chunks=3), [say("One moment."), call("add", {"a": 1, "b": 2}, id="c1")], say("3")])

From a file, `ScriptedAdapter.from_file("script.json")`::

    {"steps": [
      {"say": "Hello", "chunks": 3, "every_s": 0.1},
      [{"say": "One moment."}, {"call": "add", "arguments": {"a": 1, "b": 2}, "id": "c1"}],
      {"when": {"contains": "go on"}, "answer": {"say": "Where was I?"}}
    ]}

A step is an answer: one part, or a list of parts. With conditions it is written {"when": {...}, "answer": ...,
"repeat": true}; `when` may hold `contains` (text in the last message) and `assistant_messages` (how many answers the
request holds already, which is how a script goes on after the process that began it was killed). A request is answered
by the first step that fits it and has not been used; a step with `repeat` is never used up.

Parts: `say` and `reason` (`chunks`, `every_s`), `call` (`arguments`: an object, or raw text; `id`, `chunks`), `fail`
with a failure's code (`message`, `status`, `retry_after_ms`, `request_id`), `pause` in seconds, `cut` (true: the stream
ends unfinished), `chunk` (one raw chunk in the form of the log). An answer gets its `finish` added unless it has one,
fails or is cut, or is nothing but raw chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self

from app.llm import script_file
from app.llm.script import (
    Call,
    Cut,
    Fail,
    Gate,
    Part,
    Parts,
    Pause,
    Say,
    Step,
    call,
    count_answers,
    cut,
    fail,
    gate,
    last_text,
    pause,
    reason,
    say,
    until,
)
from app.llm.strict import check_provider_valid
from app.llm.types import ChunkStream, LlmError, LlmRequest
from app.messages import Failure, Finish, ReasoningDelta, StreamChunk, TextDelta, ToolCallDelta

__all__ = ["ScriptedAdapter", "Step", "call", "cut", "fail", "gate", "pause", "reason", "say"]


class ScriptedAdapter:
    """Answers each request with the next step of its script that fits.

    `requests` are those it was given, in order, the refused ones too. Unless `strict` is off, it refuses what a vendor
    would refuse (app.llm.strict). `sleep` waits the script's pauses, in seconds.
    """

    def __init__(
        self,
        steps: Sequence[Step | Parts | Callable[[LlmRequest], Parts]] = (),
        *,
        name: str = "script",
        strict: bool = True,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self.requests: list[LlmRequest] = []
        self.unused = [step if isinstance(step, Step) else Step(step) for step in steps]
        self._length = len(self.unused)
        self._strict = strict
        self._sleep = sleep

    @classmethod
    def from_file(cls, path: str | Path, *, name: str = "script") -> Self:
        """Follow the script of this file. Raises ConfigurationError: one line that says what is wrong, and where."""
        return cls(script_file.read(Path(path)), name=name)

    def __repr__(self) -> str:
        done = self._length - len(self.unused)
        return f"<ScriptedAdapter {self.name}: {len(self.requests)} requests, {done} of {self._length} steps used>"

    def stream(self, request: LlmRequest) -> ChunkStream:
        """The next answer. Raises LlmError UNKNOWN if no step is left for this request."""
        self.requests.append(request)
        if self._strict:
            check_provider_valid(request.messages)
        step = self._next(request)
        return self._play(step, request)

    def _next(self, request: LlmRequest) -> Step:
        for place, step in enumerate(self.unused):
            if step.fits(request):
                if not step.repeat:
                    del self.unused[place]
                return step
        left = f"{len(self.unused)} of its {self._length} steps are left, none for a request"
        history = (
            f"{count_answers(request.messages)} answers and {last_text(request.messages)[:80]!r} as the last message"
        )
        raise LlmError(Failure(f"the script of {self.name!r} is exhausted: {left} with {history}"))

    async def _play(self, step: Step, request: LlmRequest) -> AsyncGenerator[StreamChunk, None]:
        if step.opening is not None:
            await until(step.opening)
        for beat in _beats(step.parts(request)):
            match beat:
                case Pause():
                    await self._sleep(beat.seconds)
                case Gate():
                    await until(beat.wait)
                case Fail():
                    raise _error(beat)
                case _:
                    yield beat


def _beats(parts: Sequence[Part]) -> Iterator[StreamChunk | Pause | Gate | Fail]:
    """What happens one after another. Spoken blocks and calls take the next free indices."""
    index = 0
    has_call = False
    for part in parts:
        match part:
            case Say():
                delta = ReasoningDelta if part.is_reasoning else TextDelta
                for place, piece in enumerate(_pieces(part.text, part.chunks)):
                    if place and part.every_s:
                        yield Pause(part.every_s)
                    yield delta(index, piece)
                index += 1
            case Call():
                first, *others = _pieces(part.arguments, part.chunks) or [""]
                yield ToolCallDelta(index, first, part.id, part.name)
                yield from (ToolCallDelta(index, piece) for piece in others)
                index += 1
                has_call = True
            case Cut():
                return
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                index = max(index, part.index + 1)
                yield part
            case Fail() | Finish():
                yield part
                return
            case _:
                yield part
    if any(isinstance(part, Say | Call) for part in parts):
        yield Finish("tool_calls" if has_call else "stop")


def _pieces(text: str, count: int) -> list[str]:
    count = max(1, min(count, len(text)))
    bounds = [len(text) * place // count for place in range(count + 1)]
    return [text[start:end] for start, end in pairwise(bounds) if start < end]


def _error(part: Fail) -> Exception:
    return LlmError(part.error) if isinstance(part.error, Failure) else part.error

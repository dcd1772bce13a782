"""The words a scripted model's answers are written in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from app.llm.types import LlmRequest
from app.messages import AssistantMessage, Failure, Message, StreamChunk, TextBlock, ToolMessage

Wait: TypeAlias = asyncio.Event | Callable[[], Awaitable[object]]
"""What is awaited: an event until it is set, or an async function until it returns."""


@dataclass(frozen=True, slots=True)
class Say:
    text: str
    chunks: int
    every_s: float
    is_reasoning: bool


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str
    id: str | None
    chunks: int


@dataclass(frozen=True, slots=True)
class Fail:
    error: Failure | Exception


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Gate:
    wait: Wait


@dataclass(frozen=True, slots=True)
class Cut:
    pass


Part: TypeAlias = StreamChunk | Say | Call | Fail | Pause | Gate | Cut
Parts: TypeAlias = Part | Sequence[Part]


def say(text: str, chunks: int = 1, every_s: float = 0) -> Say:
    """A text block, cut into `chunks` nearly equal pieces, none of them empty, `every_s` seconds between two."""
    return Say(text, chunks, every_s, is_reasoning=False)


def reason(text: str, chunks: int = 1, every_s: float = 0) -> Say:
    """The same, as a reasoning block."""
    return Say(text, chunks, every_s, is_reasoning=True)


def call(name: str, arguments: Mapping[str, Any] | str = "{}", id: str | None = None, chunks: int = 1) -> Call:
    """A tool call. Arguments given as a string are the model's raw text; without an id the runtime makes one."""
    text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)
    return Call(name, text, id, chunks)


def fail(error: str | Exception, message: str | None = None, **details: Any) -> Fail:
    """Raise LlmError with this code (`details`: status, retry_after_ms, request_id), or any exception as it is.

    As the first part of an answer it is raised instead of opening the stream.
    """
    if isinstance(error, Exception):
        return Fail(error)
    return Fail(Failure(f"scripted failure {error}" if message is None else message, error, **details))


def pause(seconds: float) -> Pause:
    """Wait before the next chunk."""
    return Pause(seconds)


def gate(wait: Wait) -> Gate:
    """Wait before the next chunk until the test lets it come."""
    return Gate(wait)


def cut() -> Cut:
    """End the stream here, without a finish."""
    return Cut()


@dataclass(frozen=True, slots=True)
class Step:
    """One answer, and which requests it is for: those where all conditions that are given hold.

    `contains`: the last message has this text in it. `assistant_messages`: the request holds so many answers already.
    A step answers once, or with `repeat` as often as it fits. `opening` is awaited before the stream is opened.
    """

    answer: Parts | Callable[[LlmRequest], Parts]
    contains: str | None = None
    assistant_messages: int | None = None
    repeat: bool = False
    opening: Wait | None = None

    def fits(self, request: LlmRequest) -> bool:
        if self.contains is not None and self.contains not in last_text(request.messages):
            return False
        return self.assistant_messages is None or self.assistant_messages == count_answers(request.messages)

    def parts(self, request: LlmRequest) -> tuple[Part, ...]:
        answer = self.answer(request) if callable(self.answer) else self.answer
        return tuple(answer) if isinstance(answer, Sequence) else (answer,)


def last_text(messages: Sequence[Message]) -> str:
    """The text of the last message: what the user said, or the result of a call."""
    if not messages:
        return ""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return last.text
    return "\n".join(block.text for block in last.content if isinstance(block, TextBlock))


def count_answers(messages: Sequence[Message]) -> int:
    return sum(isinstance(message, AssistantMessage) for message in messages)


async def until(wait: Wait) -> None:
    """Await it, whichever kind it is."""
    await (wait.wait() if isinstance(wait, asyncio.Event) else wait())

"""What an event says, in one short line: the last column of a timeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.session import events as ev
from app.session.errors import LimitExceeded
from app.session.history import result_text
from app.session.record import SessionEvent, parse
from app.session.values import display


def body(event: SessionEvent) -> str:
    """The event's facts for a reader; of a damaged or unknown one, its stored text. May hold control characters."""
    try:
        if event.type not in ev.CATALOGUE:
            return display(event.data)
        return _BODIES[event.type](parse(event.type, event.data))
    except (ValueError, KeyError, TypeError, AttributeError, LimitExceeded):  # stored data may be anything
        return event.text


def content_text(content: Any) -> str:
    """The text of a message's content, quoted; blocks of another kind by their type."""
    if isinstance(content, str):
        return quoted(content)
    return " ".join(quoted(block["text"]) if _is_text(block) else f"<{block.get('type')}>" for block in content)


def quoted(text: str) -> str:
    return f'"{text}"'


def _is_text(block: Any) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def _accepted(event: ev.InboxAccepted) -> str:
    placement = {"next_turn": "", "next_step": "steering ", "context": "context "}[event.placement]
    return placement + content_text(event.message["content"])


def _discarded(event: ev.InboxDiscarded) -> str:
    return f"{_count(len(event.ids), 'message')} dropped, cause {event.cause}"


def _turn_start(event: ev.TurnStart) -> str:
    return f"turn {event.turn} takes {_count(len(event.input), 'message')}"


def _step(event: ev.StepStart | ev.StepEnd) -> str:
    return f"step {event.turn}.{event.step}"


def _header(event: ev.RequestHeader) -> str:
    why = "" if event.reason == "initial" else f" ({event.reason})"
    return f"{event.config['adapter']}:{event.config['model']}, {_count(len(event.tools), 'tool')}{why}"


def _chunk(event: ev.AssistantChunk) -> str:
    chunk = event.chunk
    match chunk.get("kind"):
        case "text_delta":
            return quoted(chunk["text"])
        case "reasoning_delta":
            return f"reasoning {quoted(chunk['text'])}"
        case "tool_call_delta":
            return f"calls {chunk.get('name') or ''}({chunk.get('arguments', '')}"
        case "finish":
            return f"finish {chunk['reason']}"
        case kind:
            return str(kind)


def _assistant(event: ev.AssistantMessage) -> str:
    said = " ".join(quoted(block["text"]) for block in event.content if block["type"] == "text")
    calls = ", ".join(f"{call['name']}({call['id']})" for call in event.calls)
    finish = "interrupted" if event.interrupted else event.finish if event.finish == "max_tokens" else ""
    return "  ".join(filter(None, (said, calls and f"calls {calls}", finish)))


def _call(event: ev.ToolCall) -> str:
    return f"{event.call_id} {event.name} {event.arguments}"


def _nested(event: ev.ToolNested) -> str:
    outcome = "ok" if event.error is None else event.error.get("code", "error")
    return f"{event.call_id} {event.name} {event.arguments} {outcome}"


def _result(event: ev.ToolResult) -> str:
    outcome = "ok" if event.error is None else event.error["code"]
    reconciled = ", reconciled" if event.reconciled else ""
    return f"{event.call_id} {outcome}{reconciled}: {result_text(event)}"


def _retry(event: ev.LlmRetry) -> str:
    return f"retry {retry_text(event)}"


def retry_text(event: ev.LlmRetry) -> str:
    """`1 of 2 in 500 ms, after SERVER: overloaded`."""
    most = "" if event.max_retries is None else f" of {event.max_retries}"
    failure = f"{event.failure.get('code')}: {event.failure.get('message')}"
    return f"{event.retry}{most} in {event.delay_ms} ms, after {failure}"


def _turn_end(event: ev.TurnEnd) -> str:
    cause = "" if event.cause is None else f", cause {event.cause}"
    error = "" if event.error is None else f", {event.error.get('code')}: {event.error.get('message')}"
    return f"turn {event.turn} {event.reason}{cause}{error}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


_BODIES: dict[str, Callable[[Any], str]] = {
    "inbox/accepted": _accepted,
    "inbox/discarded": _discarded,
    "turn/start": _turn_start,
    "user/message": lambda event: content_text(event.message["content"]),
    "step/start": _step,
    "request/header": _header,
    "assistant/chunk": _chunk,
    "assistant/message": _assistant,
    "tool/call": _call,
    "tool/nested": _nested,
    "tool/result": _result,
    "step/end": _step,
    "llm/retry": _retry,
    "turn/end": _turn_end,
}

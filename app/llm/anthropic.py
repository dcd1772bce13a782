"""Asks Anthropic's messages API, or a server that speaks it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.llm.anthropic_body import body
from app.llm.types import LlmRequest
from app.llm.vendor import Reading, VendorAdapter, an_object, invalid
from app.llm.wire import JsonObject
from app.messages import (
    BlockEnd,
    Failure,
    Finish,
    FinishReason,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    Usage,
)

if TYPE_CHECKING:
    import httpx2

_REASONS: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
}
_REFUSAL = Failure("the vendor's classifiers stopped the answer (stop_reason refusal)")


class AnthropicAdapter(VendorAdapter):
    """Messages, streamed, with tools and thinking."""

    sdk = "anthropic"
    address = "https://api.anthropic.com"
    path = "/v1/messages"

    def body(self, request: LlmRequest) -> JsonObject:
        return body(request, self.endpoint.options)

    def reading(self, request: LlmRequest) -> Reading:
        return _Reading()

    def client(self, http: httpx2.AsyncClient, key: str) -> Any:
        import anthropic

        return anthropic.AsyncAnthropic(
            api_key=key,
            webhook_key="",
            base_url=self.base_url,
            max_retries=0,
            http_client=http,
            open_telemetry=False,  # its spans can hold what was said
        )


@dataclass(slots=True)
class _Block:
    """A block as it began, and the pieces that came for it; `is_visible` once there is something in it for others."""

    start: JsonObject
    thinking: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)
    is_visible: bool = False

    @property
    def is_thinking(self) -> bool:
        return self.start.get("type") in ("thinking", "redacted_thinking")

    def whole(self) -> JsonObject:
        added = {"thinking": "".join(self.thinking), "signature": "".join(self.signature)}
        return self.start | {key: self.start.get(key, "") + text for key, text in added.items() if text}


class _Reading:
    """One stream. Blocks keep the vendor's indices; those of thinking are kept whole, to be sent back as they came."""

    def __init__(self) -> None:
        self.finish: Finish | None = None
        self.is_over = False
        self._usage: JsonObject = {}
        self._blocks: dict[int, _Block] = {}

    def take(self, data: object) -> Iterator[StreamChunk]:
        event = an_object(data, "an event of the stream")
        match event.get("type"):
            case "message_start":
                yield from self._count(an_object(event.get("message"), "the message of message_start"))
            case "content_block_start":
                block = _Block(dict(an_object(event.get("content_block"), "a content block")))
                self._blocks[_index(event)] = block
                yield from _started(_index(event), block)
            case "content_block_delta":
                block = self._blocks.get(_index(event)) or invalid("a delta came for a block that never began")
                yield from _added(_index(event), block, an_object(event.get("delta"), "a delta"))
            case "content_block_stop":
                yield from self._stopped(_index(event))
            case "message_delta":
                yield from self._count(event)
                reason = an_object(event.get("delta"), "a delta").get("stop_reason")
                if reason is not None:
                    self.finish = self._finish(reason)
            case "message_stop":
                self.is_over = True
            case _:  # a ping, or what a newer API adds
                pass

    def _count(self, holder: Mapping[str, Any]) -> Iterator[StreamChunk]:
        """The counts so far: those at the end go over those at the start, and leave out most of them."""
        usage = an_object(holder.get("usage") or {}, "usage")
        self._usage |= {name: count for name, count in usage.items() if count is not None}
        if usage:
            yield Usage(dict(self._usage))

    def _stopped(self, index: int) -> Iterator[StreamChunk]:
        block = self._blocks.get(index)
        if block is not None and not block.is_visible and block.start.get("input"):  # sent whole by some servers
            yield ToolCallDelta(index, json.dumps(block.start["input"], ensure_ascii=False))
        yield BlockEnd(index)

    def _finish(self, reason: object) -> Finish:
        if reason == "refusal":
            return Finish("error", _REFUSAL)
        if not isinstance(reason, str) or reason not in _REASONS:
            return Finish("error", Failure(f"the answer ended for an unknown reason: {reason!r}"))
        return Finish(_REASONS[reason], replay_state=self._replay_state())

    def _replay_state(self) -> JsonObject | None:
        """Each block of thinking, with how many blocks stand before it that are sent back for themselves."""
        thinking: list[list[Any]] = []
        before = 0
        for _, block in sorted(self._blocks.items()):
            if block.is_thinking:
                thinking.append([before, block.whole()])
            elif block.is_visible or block.start.get("type") == "tool_use":
                before += 1
        return {"thinking": thinking} if thinking else None


def _started(index: int, block: _Block) -> Iterator[StreamChunk]:
    start = block.start
    match start.get("type"):
        case "text" if start.get("text"):
            yield TextDelta(index, start["text"])
            block.is_visible = bool(start["text"].strip())
        case "thinking" if start.get("thinking"):
            yield ReasoningDelta(index, start["thinking"])
        case "tool_use":
            yield ToolCallDelta(index, "", start.get("id"), start.get("name"))


def _added(index: int, block: _Block, delta: Mapping[str, Any]) -> Iterator[StreamChunk]:
    match delta.get("type"):
        case "text_delta":
            piece = _text(delta, "text")
            block.is_visible = block.is_visible or bool(piece.strip())
            yield TextDelta(index, piece)
        case "thinking_delta":
            block.thinking.append(_text(delta, "thinking"))
            yield ReasoningDelta(index, block.thinking[-1])
        case "signature_delta":
            block.signature.append(_text(delta, "signature"))
        case "input_json_delta":
            piece = _text(delta, "partial_json")
            block.is_visible = block.is_visible or bool(piece)
            yield ToolCallDelta(index, piece)


def _index(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    return index if type(index) is int else invalid("an event names no block by its index")


def _text(delta: Mapping[str, Any], key: str) -> str:
    text = delta.get(key)
    return text if isinstance(text, str) else invalid(f"the {key} of a delta is no text")

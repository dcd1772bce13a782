"""Makes one answer of a stream's chunks, and says whether it is one. Pure: it neither waits nor records."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, assert_never

from app.llm.chunks import AssistantBlock, with_known_code
from app.llm.types import LlmError
from app.messages import (
    BlockEnd,
    Failure,
    Finish,
    FinishReason,
    ReasoningBlock,
    ReasoningDelta,
    StreamChunk,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    Usage,
)
from app.session.deep_json import has_split_pair, join_pairs

BlockKind: TypeAlias = Literal["text", "reasoning", "tool_call"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole assistant message. `replay_state` is the JSON value that its adapter wants back, or None."""

    content: tuple[AssistantBlock, ...]
    finish: FinishReason
    usage: Mapping[str, Any] | None = None
    replay_state: Any = None

    @property
    def calls(self) -> tuple[ToolCallBlock, ...]:
        """The calls it asks for, in model order; what runs depends on them, not on `finish`."""
        return tuple(block for block in self.content if isinstance(block, ToolCallBlock))


@dataclass(slots=True)
class _Block:
    kind: BlockKind
    pieces: list[str] = field(default_factory=list)
    id: str = ""
    name: str = ""
    is_ended: bool = False


class Assembler:
    """Takes the chunks of one stream in order. `finished` is its Finish once that came, `usage` the last counts."""

    def __init__(self) -> None:
        self.finished: Finish | None = None
        self.usage: Mapping[str, Any] | None = None
        self._blocks: dict[int, _Block] = {}

    def add(self, chunk: StreamChunk) -> None:
        """Take the next chunk. Raises LlmError INVALID_STREAM for a delta of another kind at an open index."""
        match chunk:
            case TextDelta():
                self._add_piece("text", chunk.index, chunk.text)
            case ReasoningDelta():
                self._add_piece("reasoning", chunk.index, chunk.text)
            case ToolCallDelta():
                block = self._add_piece("tool_call", chunk.index, chunk.arguments)
                if block is not None:  # some vendors repeat id and name with each piece, some send "" later on
                    block.id = block.id or chunk.id or ""
                    block.name = block.name or chunk.name or ""
            case BlockEnd():
                if chunk.index in self._blocks:
                    self._blocks[chunk.index].is_ended = True
            case Usage():
                self.usage = chunk.usage
            case Finish():
                self.finished = chunk
            case _:
                assert_never(chunk)

    def _add_piece(self, kind: BlockKind, index: int, piece: str) -> _Block | None:
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = _Block(kind)
        elif block.is_ended:
            return None
        elif block.kind != kind:
            message = f"block {index} of the stream is {block.kind}, and a piece of {kind} came for it"
            raise LlmError(Failure(message, "INVALID_STREAM"))
        block.pieces.append(piece)
        return block

    def verdict(self, used: Container[str], turn: int, step: int) -> Answer | Failure:
        """What the stream came to, once nothing more comes: an answer, or why there is none.

        `used` holds the call ids that the session has used; turn and step are where this answer will stand. A call
        without an id, or with one used before, gets one made of them, so the same stream gives the same ids.
        """
        finish = self.finished
        if finish is None:
            return Failure("the model's stream ended before it was finished", "STREAM_CLOSED")
        match finish.reason:
            case "error":
                return with_known_code(finish.failure or Failure("the model reported an error and did not say which"))
            case "aborted":
                message = finish.failure.message if finish.failure else "the model's side aborted its answer"
                return Failure(message, "ABORTED")
            case "max_tokens":
                content = self._spoken()
            case "stop" | "tool_calls":
                content = self._content(used, turn, step)
                if not any(isinstance(block, TextBlock | ToolCallBlock) for block in content):
                    return Failure("the model answered with neither text nor a tool call", "EMPTY_RESPONSE")
        return Answer(content, finish.reason, self.usage, finish.replay_state)

    def interrupted(self) -> tuple[AssistantBlock, ...] | None:
        """The text and reasoning so far, for a stream that was cancelled; None if no text was visible yet."""
        content = self._spoken()
        return content if any(isinstance(block, TextBlock) for block in content) else None

    def _spoken(self) -> tuple[AssistantBlock, ...]:
        """The blocks but for the calls. Ids matter to calls alone."""
        return tuple(block for block in self._content((), 0, 0) if not isinstance(block, ToolCallBlock))

    def _content(self, used: Container[str], turn: int, step: int) -> tuple[AssistantBlock, ...]:
        content: list[AssistantBlock] = []
        taken: set[str] = set()
        for index, block in sorted(self._blocks.items()):
            text = _whole("".join(block.pieces))
            if block.kind == "tool_call":
                call_id = _whole(block.id)
                if not call_id or call_id in used or call_id in taken:
                    call_id = f"{call_id or 'call'}#{turn}.{step}.{index}"
                    while call_id in used or call_id in taken:
                        call_id += "'"
                taken.add(call_id)
                content.append(ToolCallBlock(call_id, _whole(block.name), text))
            elif text:
                content.append(TextBlock(text) if block.kind == "text" else ReasoningBlock(text))
        return tuple(content)


def _whole(text: str) -> str:
    """`text` as the log will keep it: a character may have come in two halves, each in a piece of its own."""
    return join_pairs(text) if has_split_pair(text) else text

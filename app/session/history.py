"""What the model sees of a log: a pure fold, the same whether done at once or one event at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.messages import (
    AssistantMessage,
    Message,
    ModelRef,
    OpaqueBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolMessage,
    UserMessage,
)
from app.session import events as ev
from app.session.record import SessionEvent, parse
from app.session.values import display, encode


class History:
    """The messages derived so far. Everything but three types of events gives nothing."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    def add(self, event: ev.EventData) -> None:
        match event:
            case ev.UserMessage():
                self._messages.append(user_message(event.message["content"]))
            case ev.AssistantMessage():
                message = assistant_message(event)
                if any(isinstance(block, TextBlock | ToolCallBlock) for block in message.content):
                    self._messages.append(message)
            case ev.ToolResult():
                self._messages.append(ToolMessage(event.call_id, event.is_error, result_text(event)))


def derive_messages(events: Iterable[SessionEvent]) -> tuple[Message, ...]:
    """What the model sees of these events. They are taken to be a legal log or a prefix of one."""
    history = History()
    for event in events:
        if event.type in _GIVES:
            history.add(parse(event.type, event.data))
    return history.messages


_GIVES = frozenset([ev.UserMessage.type, ev.AssistantMessage.type, ev.ToolResult.type])


def user_message(content: str | list[dict[str, Any]]) -> UserMessage:
    """User content unchanged: a string is one text block, a block of another kind is kept as it is."""
    if isinstance(content, str):
        return UserMessage((TextBlock(content),))
    return UserMessage(tuple(_user_block(block) for block in content))


def _user_block(block: dict[str, Any]) -> TextBlock | OpaqueBlock:
    text = block.get("text")
    if block["type"] == "text" and isinstance(text, str) and len(block) == 2:
        return TextBlock(text)
    return OpaqueBlock(encode(block))


def assistant_message(event: ev.AssistantMessage) -> AssistantMessage:
    """The message with its blocks, and the model that it came from."""
    model = ModelRef(event.model["adapter"], event.model["model"])
    replay_state = None if event.replay_state is ev.ABSENT else encode(event.replay_state)
    return AssistantMessage(tuple(_assistant_block(block) for block in event.content), model, replay_state)


def _assistant_block(block: dict[str, Any]) -> TextBlock | ReasoningBlock | ToolCallBlock:
    match block["type"]:
        case "text":
            return TextBlock(block["text"])
        case "reasoning":
            return ReasoningBlock(block["text"])
        case _:
            return ToolCallBlock(block["id"], block["name"], block["arguments"])


def result_text(event: ev.ToolResult) -> str:
    """A string as it is, any other value as compact JSON text, an error as `Error: ` and its message."""
    if event.error is not None:
        return f"Error: {event.error['message']}"
    return event.value if isinstance(event.value, str) else display(event.value)

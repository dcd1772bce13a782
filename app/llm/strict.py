"""What a model vendor would refuse in a request's messages, so that a scripted model can refuse it too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from app.llm.types import LlmError
from app.messages import AssistantMessage, Failure, Message, TextBlock, ToolCallBlock, ToolMessage, UserMessage


def check_provider_valid(messages: Sequence[Message]) -> None:
    """Raise LlmError (UNKNOWN, status 400) unless every vendor takes these messages.

    The user speaks first; no message and no text block is empty; each call has an id of its own; and directly after
    the message that asks for calls stand their results, one each, in its order.
    """
    if not messages:
        _refuse("there are no messages")
    if not isinstance(messages[0], UserMessage):
        _refuse("messages[0]: the first message is the user's")
    owed: list[str] = []
    seen: set[str] = set()
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        if isinstance(message, ToolMessage):
            if not owed:
                _refuse(f"{where}: a result of call {message.call_id!r}, which no message directly before asks for")
            if message.call_id != owed[0]:
                _refuse(f"{where}: a result of call {message.call_id!r}, where that of {owed[0]!r} is due")
            del owed[0]
            continue
        if owed:
            _refuse(f"{where}: the results of {', '.join(map(repr, owed))} are missing before it")
        _check_content(where, message)
        if isinstance(message, AssistantMessage):
            owed = [block.id for block in message.content if isinstance(block, ToolCallBlock)]
            for call_id in owed:
                if not call_id or call_id in seen:
                    _refuse(f"{where}: the call id {call_id!r} is {'used before' if call_id else 'empty'}")
                seen.add(call_id)
    if owed:
        _refuse(f"the results of {', '.join(map(repr, owed))} are missing at the end")


def _check_content(where: str, message: UserMessage | AssistantMessage) -> None:
    if isinstance(message, AssistantMessage):
        if not any(isinstance(block, TextBlock | ToolCallBlock) for block in message.content):
            _refuse(f"{where}: an assistant message without text and without a call")
    elif not message.content:
        _refuse(f"{where}: a user message without content")
    if any(isinstance(block, TextBlock) and not block.text for block in message.content):
        _refuse(f"{where}: an empty text block")


def _refuse(text: str) -> NoReturn:
    raise LlmError(Failure(f"a vendor would refuse this request: {text}", status=400))

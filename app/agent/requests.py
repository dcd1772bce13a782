"""What a request is made of: the header in force and the messages before its step; and the same again from a log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from app.agent.turn import ModelConfig, Turn, TurnFailed
from app.cancel import CancelSignal
from app.llm.types import LlmRequest
from app.messages import Message, ModelRef, ToolSpec
from app.session import events as ev
from app.session.grammar import header_text
from app.session.history import History
from app.session.record import SessionEvent, parse
from app.session.values import decode, encode


def header_event(turn: Turn, tools: Sequence[ToolSpec]) -> ev.RequestHeader | None:
    """The header that the next request needs in the log, or None if the last one says it all. Raises TurnFailed."""
    config, state = turn.config, turn.session.state
    data, tools_data = _config_json(config, turn), [_tool_json(tool) for tool in tools]
    if state.header is None:
        reason: Literal["initial", "resume", "change"] = "initial"
    elif turn.is_first_request:
        reason = "resume"
    elif state.header != header_text(data, config.system, tools_data):
        reason = "change"
    else:
        return None
    turn.is_first_request = False
    return ev.RequestHeader(turn.number, turn.step, reason, data, tools_data, system=config.system)


def _config_json(config: ModelConfig, turn: Turn) -> ev.JsonObject:
    for setting, value in (("model.adapter", config.adapter), ("model.name", config.name)):
        if value is None:
            raise TurnFailed("CONFIGURATION", f"no model is configured: set {setting}, or pass --model", turn.step)
    data: ev.JsonObject = {"adapter": config.adapter, "model": config.name}
    data |= {} if config.temperature is None else {"temperature": config.temperature}
    data |= {} if config.max_tokens is None else {"max_tokens": config.max_tokens}
    data |= {} if not config.stop else {"stop": list(config.stop)}
    return data


def _tool_json(tool: ToolSpec) -> ev.JsonObject:
    return {"name": tool.name, "description": tool.description, "schema": decode(tool.input_schema)}


def make_request(header: str, messages: Sequence[Message], session_id: str, signal: CancelSignal | None) -> LlmRequest:
    """The request of a step. `header` is the JSON text `[config, system, tools]` of the header in force."""
    parts: Any = decode(header)
    config, system, tools = parts
    return LlmRequest(
        model=ModelRef(config["adapter"], config["model"]),
        messages=tuple(messages),
        system=system,
        tools=tuple(ToolSpec(tool["name"], tool["description"], encode(tool["schema"])) for tool in tools),
        temperature=config.get("temperature"),
        max_tokens=config.get("max_tokens"),
        stop=tuple(config.get("stop", ())),
        session_id=session_id,
        signal=signal,
    )


def rebuild_requests(session_id: str, events: Iterable[SessionEvent]) -> tuple[LlmRequest, ...]:
    """The request of every finished step of a log, as the loop makes it, from the log alone.

    A step that came to its end before it was asked has one too, if a header was in force: the log does not tell.
    """
    history, header = History(), None
    messages: tuple[Message, ...] = ()
    requests: list[LlmRequest] = []
    for event in events:
        if event.type not in ev.CATALOGUE:
            continue
        data = parse(event.type, event.data)
        if isinstance(data, ev.StepStart):
            messages = history.messages
        elif isinstance(data, ev.RequestHeader):
            header = header_text(data.config, data.system, data.tools)
        elif isinstance(data, ev.StepEnd) and header is not None:
            requests.append(make_request(header, messages, session_id, None))
        history.add(data)
    return tuple(requests)

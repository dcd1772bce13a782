"""What the log keeps of an event: its place, time, type and data as frozen JSON text; and the checks of that data."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from app.session.events import ABSENT, CATALOGUE, EventData, Extension, JsonObject
from app.session.values import decode, encode


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """One recorded fact. `text` is the ASCII JSON text of its data: the frozen form, and the stored form.

    `time` is integer milliseconds since the epoch, UTC, and information only: the order is `seq`.
    """

    seq: int
    time: int
    type: str
    text: str
    ignorable: bool = False

    @property
    def data(self) -> JsonObject:
        """The data as fresh objects: changing them changes nothing here."""
        value = decode(self.text)
        if not isinstance(value, dict):
            raise ValueError("data is not an object")
        return value

    @property
    def line(self) -> str:
        """The whole event as one line of ASCII JSON: two events are equal if their lines are."""
        ignorable = ',"ignorable":true' if self.ignorable else ""
        return f'{{"seq":{self.seq},"type":{_encode_name(self.type)},"time":{self.time},"data":{self.text}{ignorable}}}'

    def __repr__(self) -> str:
        return f"<{self.seq} {self.type} {self.text if len(self.text) < 80 else self.text[:77] + '...'}>"


_encode_name = lru_cache(maxsize=256)(encode)


def to_json(event: EventData) -> JsonObject:
    """The JSON object that is stored for an event; it shares the event's values."""
    if isinstance(event, Extension):
        return event.body
    data: JsonObject = {}
    for name, keeps_none in _LAYOUT[event.type]:
        value = getattr(event, name)
        if value is not ABSENT and (value is not None or keeps_none):
            data[name] = value
    return data


def parse(type: str, data: Mapping[str, Any]) -> EventData:
    """Read stored data of a built-in type. Raises ValueError for a missing field; `problem` tells of wrong ones.

    Keys that this build does not know are left out here; they stay in the stored text.
    """
    cls = CATALOGUE[type]
    fields = {name: data[name] for name, _ in _LAYOUT[type] if name in data}
    if missing := _REQUIRED[type] - fields.keys():
        raise ValueError(f"{type} lacks {', '.join(sorted(missing))}")
    return cls(**fields)


def problem(event: EventData) -> str | None:
    """What is wrong with an event's own data, whatever came before it; None if nothing is."""
    if isinstance(event, Extension):
        return None if type(event.body) is dict else "data is not an object"
    for name, is_right in _CHECKS[event.type]:
        if not is_right(getattr(event, name)):
            return f"{event.type}: {name} is not what it has to be"
    check = _SHAPES.get(event.type)
    return check(event) if check else None


# ------------------------------------------------------------------------------------- one field at a time


def _is(hint: Any) -> Callable[[Any], bool]:
    origin, args = get_origin(hint), get_args(hint)
    if hint is int:
        return lambda value: type(value) is int and value >= 0
    if origin is Literal:
        return lambda value: any(value == arg and type(value) is type(arg) for arg in args)
    if origin in (Union, types.UnionType):
        choices = tuple(_is(arg) for arg in args)
        return lambda value: any(choice(value) for choice in choices)
    if origin is list:
        is_item = _is(args[0])
        return lambda value: type(value) is list and all(is_item(item) for item in value)
    kind = origin or hint
    return lambda value: type(value) is kind


# ------------------------------------------------------------------------- what history and requests rely on


def message_problem(message: Any) -> str | None:
    """What keeps a value from being an inbox message `{id, content, meta?}`; None if nothing does."""
    if type(message) is not dict or type(message.get("id")) is not str:
        return "a message is an object with a string id"
    content = message.get("content")
    if content == "" or content == []:
        return "a message's content is not empty"
    if type(content) is str:
        return None
    if type(content) is not list or not all(type(b) is dict and type(b.get("type")) is str for b in content):
        return "a message's content is a string, or a list of blocks with a type"
    return None


_BLOCK_KEYS = {"text": ("text",), "reasoning": ("text",), "tool_call": ("id", "name", "arguments")}


def _blocks_problem(event: Any) -> str | None:
    for block in event.content:
        kind = block.get("type")
        keys = _BLOCK_KEYS.get(kind) if type(kind) is str else None
        if keys is None or not all(type(block.get(key)) is str for key in keys):
            return f"assistant/message: no such block: {kind!r}"
    return _config_problem(event.type, event.model)


def _config_problem(where: str, config: JsonObject) -> str | None:
    if type(config.get("adapter")) is not str or type(config.get("model")) is not str:
        return f"{where}: adapter and model are not named"
    return None


_CONFIG_KINDS = {"temperature": (int, float), "max_tokens": (int,), "stop": (list,)}


def _header_problem(event: Any) -> str | None:
    for tool in event.tools:
        if not (type(tool.get("name")) is str and type(tool.get("description")) is str and "schema" in tool):
            return "request/header: a tool has name, description and schema"
    for name, kinds in _CONFIG_KINDS.items():
        if name in event.config and type(event.config[name]) not in kinds:
            return f"request/header: {name} is not what it has to be"
    if not all(type(text) is str for text in event.config.get("stop", ())):
        return "request/header: stop is a list of strings"
    return _config_problem(event.type, event.config)


def _result_problem(event: Any) -> str | None:
    if event.is_error is not (event.error is not None) or event.is_error is not (event.value is ABSENT):
        return "tool/result: holds either a value or an error"
    if event.error is not None and not all(type(event.error.get(key)) is str for key in ("code", "message")):
        return "tool/result: an error has a code and a message"
    return None


_SHAPES: dict[str, Callable[[Any], str | None]] = {
    "inbox/accepted": lambda event: message_problem(event.message),
    "user/message": lambda event: message_problem(event.message),
    "assistant/message": _blocks_problem,
    "request/header": _header_problem,
    "tool/result": _result_problem,
}

_CLASSES: list[tuple[str, Any]] = list(CATALOGUE.items())
_LAYOUT = {name: tuple((f.name, bool(f.metadata)) for f in dataclasses.fields(cls)) for name, cls in _CLASSES}
_REQUIRED = {
    name: frozenset(f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING)
    for name, cls in _CLASSES
}
_CHECKS = {
    name: tuple(
        (field, _is(hint))
        for field, hint in get_type_hints(cls).items()
        if field in dict(_LAYOUT[name]) and hint is not Any
    )
    for name, cls in _CLASSES
}

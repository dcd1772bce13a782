"""A scripted model's script as a JSON file; its form is told in app.llm.scripted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from app.llm.chunks import from_json
from app.llm.script import Part, Step, call, cut, fail, pause, reason, say
from app.llm.types import LlmError
from app.messages import FAILURE_CODES
from app.session.errors import ConfigurationError
from app.session.values import decode

Is: TypeAlias = Callable[[Any], bool]


class _Fault(Exception):
    """What is wrong at a JSON pointer."""

    def __init__(self, pointer: str, text: str) -> None:
        super().__init__(f"at {pointer or 'its top'}: {text}")


def read(path: Path) -> list[Step]:
    """The steps of this file. Raises ConfigurationError: one line with the file, the place and what may stand there."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        script = decode(text)
        return _script(script)
    except OSError as error:
        raise ConfigurationError(f"cannot read the script {str(path)!r}: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise ConfigurationError(f"the script {str(path)!r} is not JSON, {where}: {error.msg}") from error
    except ValueError as error:  # not UTF-8, or a number that is none
        raise ConfigurationError(f"the script {str(path)!r} is not JSON: {error}") from error
    except _Fault as fault:
        raise ConfigurationError(f"the script {str(path)!r} is wrong {fault}") from fault


def _script(script: object) -> list[Step]:
    given = _object("", script, {"steps": _is_list}, required=("steps",))
    return [_step(f"/steps/{place}", step) for place, step in enumerate(given["steps"])]


def _step(where: str, step: object) -> Step:
    if not (isinstance(step, dict) and ("answer" in step or "when" in step or "repeat" in step)):
        return Step(_parts(where, step))
    keys: dict[str, Is] = {"when": _is_object, "answer": _is_any, "repeat": _is_bool}
    given = _object(where, step, keys, required=("answer",))
    conditions: dict[str, Is] = {"contains": _is_string, "assistant_messages": _is_count}
    when = _object(f"{where}/when", given.get("when", {}), conditions)
    return Step(_parts(f"{where}/answer", given["answer"]), repeat=given.get("repeat", False), **when)


def _parts(where: str, answer: object) -> tuple[Part, ...]:
    if isinstance(answer, list):
        return tuple(_part(f"{where}/{place}", part) for place, part in enumerate(answer))
    return (_part(where, answer),)


def _part(where: str, part: object) -> Part:
    word = next((word for word in _WORDS if isinstance(part, dict) and word in part), None)
    if word is None:
        raise _Fault(where, f"a part is an object with one of the keys {', '.join(_WORDS)}")
    keys, make = _WORDS[word]
    given = _object(where, part, keys)
    try:
        return make(given.pop(word), **given)
    except LlmError as error:
        raise _Fault(f"{where}/{word}", str(error)) from error


def _object(where: str, value: object, keys: Mapping[str, Is], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """A copy of `value`, if it is an object that has no other keys, and what `keys` asks for under each of these."""
    if not isinstance(value, dict):
        raise _Fault(where, f"an object is due here, with the keys {', '.join(keys)}")
    for key, inner in value.items():
        if key not in keys:
            raise _Fault(f"{where}/{_escaped(key)}", f"unknown key; allowed are {', '.join(keys)}")
        if not keys[key](inner):
            raise _Fault(f"{where}/{key}", f"{_EXPECTED[keys[key]]} is due here")
    if missing := [key for key in required if key not in value]:
        raise _Fault(where, f"the key {', '.join(missing)} is missing")
    return dict(value)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _is_any(_: object) -> bool:
    return True


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_true(value: object) -> bool:
    return value is True


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_arguments(value: object) -> bool:
    return isinstance(value, dict | str)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_positive(value: object) -> bool:
    return type(value) is int and value > 0


def _is_seconds(value: object) -> bool:
    return type(value) in (int, float) and value >= 0  # type: ignore[operator]  # a number, as just seen


def _is_code(value: object) -> bool:
    return isinstance(value, str) and value in FAILURE_CODES


_EXPECTED: Mapping[Is, str] = {
    _is_bool: "true or false",
    _is_true: "true",
    _is_string: "a string",
    _is_list: "a list",
    _is_object: "an object",
    _is_arguments: "an object or a string",
    _is_count: "an integer from 0",
    _is_positive: "an integer from 1",
    _is_seconds: "a number of seconds",
    _is_code: f"one of {', '.join(FAILURE_CODES)}",
}

_SPOKEN: Mapping[str, Is] = {"chunks": _is_positive, "every_s": _is_seconds}
_FAILED: Mapping[str, Is] = {
    "message": _is_string,
    "status": _is_count,
    "retry_after_ms": _is_count,
    "request_id": _is_string,
}

_WORDS: Mapping[str, tuple[Mapping[str, Is], Callable[..., Part]]] = {
    "say": ({"say": _is_string, **_SPOKEN}, say),
    "reason": ({"reason": _is_string, **_SPOKEN}, reason),
    "call": ({"call": _is_string, "arguments": _is_arguments, "id": _is_string, "chunks": _is_positive}, call),
    "fail": ({"fail": _is_code, **_FAILED}, fail),
    "pause": ({"pause": _is_seconds}, pause),
    "cut": ({"cut": _is_true}, lambda _: cut()),
    "chunk": ({"chunk": _is_object}, from_json),
}

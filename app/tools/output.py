"""Decides whether a value can be the result of a call: what its tool declares, what can be stored, and how much."""

from collections.abc import Sequence
from typing import Any

from app.causes import error_text
from app.session.errors import LimitExceeded, UnstorableValue
from app.session.values import decode, encode
from app.tools import outcomes
from app.tools.foreign import Raised, answer_at_once
from app.tools.types import InvalidOutput, Tool, ToolResult

MAX_RESULT_BYTES = 4 * 1024 * 1024


def stored_text(value: Any) -> str:
    """The JSON text that would be stored. Raises InvalidOutput naming path and kind."""
    try:
        return encode(value)
    except UnstorableValue as error:
        raise InvalidOutput(f'at "{error.path}": {error.kind}') from error
    except LimitExceeded as error:
        raise InvalidOutput(f'at "": {error}') from error


def pointer(value: Any, path: Sequence[int | str], *, is_missing: bool) -> str:
    """`path` as a JSON pointer into `value`, without the parts that lead nowhere in it: names of a type's branches.

    With `is_missing` the last part names what is not there.
    """
    parts: list[int | str] = []
    for n, part in enumerate(path, 1):
        try:
            value = value[part]
        except (LookupError, TypeError):
            if not (is_missing and n == len(path)):
                continue
        parts.append(part)
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def checked(tool: Tool, value: Any, limit: int, *, has_run: bool) -> ToolResult:
    """The result that `value` makes: its JSON form, or an error that says whether the tool ran. `limit` is in bytes."""
    answer = answer_at_once(lambda: tool.to_json(value))
    if isinstance(answer, Raised):
        problem = error_text(answer.error)
        if not isinstance(answer.error, InvalidOutput):
            problem = f'at "": {type(answer.error).__name__}: {problem}'
        return outcomes.invalid_output(problem, has_run=has_run)
    return recordable(answer, limit, has_run=has_run)


def recordable(value: Any, limit: int, *, has_run: bool) -> ToolResult:
    """A result with a copy of a JSON value, which its tool cannot change any more; or an error as that of `checked`."""
    try:
        text = stored_text(value)
    except InvalidOutput as error:
        return outcomes.invalid_output(str(error), has_run=has_run)
    if len(text) > limit:
        return outcomes.too_large(len(text), limit, has_run=has_run)
    return ToolResult(decode(text) if isinstance(value, list | dict) else value)

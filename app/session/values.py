"""The one text of a value: checked and written once, it is frozen, keeps everything, and is the same on every store.

The C codec does what is common; `deep_json` takes over for depth, long integers, and telling what is wrong.
"""

import math
import re
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from json import JSONDecoder, JSONEncoder
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, NoReturn, TypeAlias

from app.session import deep_json
from app.session.errors import LimitExceeded
from app.session.integers import NATIVE_DIGITS, integer

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"


@dataclass(frozen=True, slots=True)
class ValueLimits:
    """`max_depth` counts levels of containers (a string has none), `max_integer_digits` digits without the sign."""

    max_depth: int = 200_000
    max_integer_digits: int = 20_000


DEFAULT = ValueLimits()

_NONE = ValueLimits(max_depth=sys.maxsize, max_integer_digits=sys.maxsize)
_SHALLOW = 100  # levels that are left to the C codec's recursion: more than events have, far from any recursion limit
_LEAVES = frozenset({str, type(None), bool, float})
_ASCII = JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":"))
_UNICODE = JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))


# -- writing -------------------------------------------------------------------------------------


def encode(value: object, limits: ValueLimits = DEFAULT) -> str:
    """The one JSON text of `value`: ASCII, no spaces, keys in their order, each character written in one way only.

    Raises UnstorableValue for anything but None, bool, int, float, str, list, and dict with str keys (subclasses are
    other things), for NaN and infinities, for cycles, and for two keys that differ only in having a character as itself
    or as two surrogates; LimitExceeded for what passes `limits`. Whichever comes first in the text is told.
    """
    return _text(value, _ASCII, encode_basestring_ascii, limits)


def display(value: object) -> str:
    """The JSON text of a stored value for a reader: like `encode`, but characters beyond ASCII are kept. No limits."""
    text = _text(value, _UNICODE, encode_basestring, _NONE)
    return deep_json.join_pairs(text) if deep_json.has_split_pair(text) else text


def _text(value: object, encoder: JSONEncoder, quote: Callable[[str], str], limits: ValueLimits) -> str:
    if _is_common(value, limits):
        with suppress(ValueError, RecursionError):  # NaN or an infinity; or a caller who has used up the stack
            return encoder.encode(value)
    return deep_json.write(value, quote, limits)


def _is_common(value: object, limits: ValueLimits) -> bool:
    """Whether the C encoder may write `value`, NaN and infinities aside. False only means: look closely."""
    long = 10 ** min(NATIVE_DIGITS, limits.max_integer_digits)
    level: list[Any] = [(value,)]
    met: set[int] = set()
    containers = 0
    for _ in range(min(_SHALLOW, limits.max_depth) + 1):
        inner: list[Any] = []
        for container in level:
            items: Collection[Any] = container
            if type(container) is dict:
                for key in container:
                    if type(key) is not str or not (key.isascii() or not deep_json.has_split_pair(key)):
                        return False
                items = container.values()
            for item in items:
                kind = type(item)
                if kind in _LEAVES:
                    continue
                if kind is dict or kind is list:
                    inner.append(item)
                elif kind is not int or not -long < item < long:
                    return False
        if not inner:
            return True
        met.update(map(id, inner))
        containers += len(inner)
        if len(met) < containers:  # one is there twice: shared, or a cycle, which might double at each level
            return False
        level = inner
    return False


# -- reading -------------------------------------------------------------------------------------

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE_OR_SURROGATE = re.compile("\\\\.|[\ud800-\udfff]", re.DOTALL)


def decode(text: str, limits: ValueLimits | None = None) -> JsonValue:
    """The value that `text` is the JSON text of, in objects that nobody else holds.

    Any JSON will do, not only what `encode` wrote: of equal keys the last one counts, and two surrogates that make a
    character become it. Raises ValueError for what is not JSON (as are NaN and Infinity) and for a number beyond all
    floats (1e400); with `limits`, LimitExceeded too, before anything long is converted or deep built.
    """
    if limits is None and text.isascii() and text.count("[") + text.count("{") <= _SHALLOW:  # as stored events are
        try:
            value, end = _SCAN(text, 0)
        except (StopIteration, ValueError, RecursionError):  # looked at more closely below, and told from there
            end = -1
        if end == len(text):
            return value  # type: ignore[no-any-return]  # JSON values, and nothing else
    if not text.isascii() and _SURROGATE.search(text):
        text = _ESCAPE_OR_SURROGATE.sub(_escaped, text)  # the parser joins escapes, and only those
    decoder = _decoder(limits or _NONE)
    max_depth = (limits or _NONE).max_depth
    shallow = min(_SHALLOW, max_depth)
    if text.count("[") + text.count("{") > shallow and (depth := deep_json.nesting(text)) > shallow:
        if depth > max_depth:
            raise LimitExceeded("max_depth", max_depth, depth)
        return deep_json.parse(text, decoder)
    with suppress(RecursionError):  # a caller who has used up the stack
        return decoder.decode(text)  # type: ignore[no-any-return]  # JSON values, and nothing else
    return deep_json.parse(text, decoder)


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith("\\") else f"\\u{ord(found[0]):x}"


@lru_cache(maxsize=8)
def _decoder(limits: ValueLimits) -> JSONDecoder:
    native = min(NATIVE_DIGITS, limits.max_integer_digits)

    def any_integer(digits: str) -> int:
        return int(digits) if len(digits) <= native else integer(digits, limits.max_integer_digits)

    return JSONDecoder(parse_int=any_integer, parse_float=_finite, parse_constant=_no_constant)


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"the number {number[:40]} is beyond all floats")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_COMMON: Any = JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
_SCAN = _COMMON.scan_once
"""Reads a value without what the decoder does around it, and integers in C: those too long are a ValueError."""

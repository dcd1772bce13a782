"""JSON where the C codec gives up: nested to any depth, with integers of any length, and told where a value is wrong.

It is slower, and walks with a stack of its own, so that neither the recursion limit nor the C stack bounds it.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterator
from itertools import accumulate, count
from json import JSONDecodeError, JSONDecoder
from operator import sub
from typing import TYPE_CHECKING, Any

from app.session.errors import LimitExceeded, UnstorableValue
from app.session.integers import decimal

if TYPE_CHECKING:
    from app.session.values import JsonValue, ValueLimits

Path = list[Any]
"""A key or index for each open container, after one for the whole."""

_HIGH_THEN_LOW = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")
_STEPS = bytes.maketrans(b"[{]}", b"\2\2\0\0")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[{]}")
_END = object()
_SPACE = re.compile(r"[ \t\n\r]*")


def has_split_pair(text: str) -> bool:
    """Whether `text` holds a character as the two surrogates that encode it."""
    return not text.isascii() and _HIGH_THEN_LOW.search(text) is not None


def join_pairs(text: str) -> str:
    """`text` with each such character as itself. Surrogates without a partner stay."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


# -- writing -------------------------------------------------------------------------------------


def write(value: object, quote: Callable[[str], str], limits: ValueLimits) -> str:
    """The compact JSON text of `value`, its strings as `quote` gives them.

    Raises UnstorableValue or LimitExceeded for whichever comes first in the text.
    """
    out = ["["]
    path: Path = [-1]
    open_: list[Any] = [[value]]  # the whole stands in a list of its own, whose brackets are left off in the end
    keys: list[Iterator[object]] = []  # what is left of each open object
    inside: set[int] = set()
    while open_:  # nothing here is allocated per level that the garbage collector would have to visit, but for `keys`
        around = open_[-1]
        if type(around) is list:
            path[-1] = place = path[-1] + 1
            more = place < len(around)
        else:
            path[-1] = place = next(keys[-1], _END)
            more = place is not _END
        if not more:
            out.append("]" if type(around) is list else "}")
            inside.discard(id(around))
            if type(around) is dict:
                keys.pop()
            path.pop()
            open_.pop()
            continue
        if out[-1] not in ("[", "{"):  # a string that reads like this stands in quotes
            out.append(",")
        if type(around) is dict:
            out.append(quote(_key(path)) + ":")
        item = around[place]
        if type(item) is not list and type(item) is not dict:
            out.append(_leaf(item, quote, limits, path))
            continue
        if id(item) in inside:
            raise UnstorableValue(_pointer(path), "a cycle, it is inside itself")
        if len(open_) > limits.max_depth:
            raise LimitExceeded("max_depth", limits.max_depth, len(open_))
        if type(item) is dict:
            _refuse_twins(item, path)
            keys.append(iter(item))
        out.append("[" if type(item) is list else "{")
        inside.add(id(item))
        open_.append(item)
        path.append(-1)
    return "".join(out[1:-1])


def _leaf(item: object, quote: Callable[[str], str], limits: ValueLimits, path: Path) -> str:
    if type(item) is str:
        return quote(item)
    if item is None:
        return "null"
    if type(item) is bool:
        return "true" if item else "false"
    if type(item) is int:
        return decimal(item, limits.max_integer_digits)
    if type(item) is not float:
        raise UnstorableValue(_pointer(path), _kind(item))
    if not math.isfinite(item):
        raise UnstorableValue(_pointer(path), "NaN" if math.isnan(item) else "an infinity")
    return repr(item)


def _key(path: Path) -> str:
    key = path[-1]
    if type(key) is not str:
        raise UnstorableValue(_pointer(path[:-1]), f"its key {_shown(key)} is no str but {_kind(key)}")
    return key


def _refuse_twins(members: dict[object, object], path: Path) -> None:
    keys = [key for key in members if type(key) is str]
    if not any(map(has_split_pair, keys)):
        return
    met: set[str] = set()
    for key in keys:
        if join_pairs(key) in met:
            raise UnstorableValue(_pointer(path), f"its key {_shown(key)} is there twice, written in two ways")
        met.add(join_pairs(key))


def _pointer(path: Path) -> str:
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path[1:])


def _kind(item: object) -> str:
    name = type(item).__name__
    bases = [base.__name__ for base in type(item).__mro__ if base in (str, int, float, list, dict)]
    return f"{name}, a subclass of {bases[0]}" if bases and type(item).__module__ != "builtins" else name


def _shown(key: object) -> str:
    try:
        return _ADDRESS.sub("", reprlib.repr(key))  # the same fault gives the same text
    except Exception:  # a key may be of any class, and its `__repr__` may raise anything
        return "(not to be shown)"


# -- reading -------------------------------------------------------------------------------------


def nesting(text: str) -> int:
    """How many levels of containers `text` has; if it is not JSON, at least as many as before its fault."""
    outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    steps = outside.encode("ascii", "replace").translate(_STEPS, _NOT_BRACKETS)
    return max(map(sub, accumulate(steps), count(1)), default=0)  # 2 or 0 for each bracket, less 1 for each


def parse(text: str, decoder: JSONDecoder) -> JsonValue:
    """The value that `text` is the JSON text of; `decoder` reads what is no container. Its errors are ours."""
    open_: list[list[JsonValue] | dict[str, JsonValue]] = []
    keys: list[str] = []  # of the open objects, each waiting for its value
    at = _skip(text, 0)
    while True:
        value, at, is_open = _begin(text, at, decoder)
        if is_open:
            assert isinstance(value, list | dict)
            open_.append(value)
        while not is_open:  # the value is complete, and perhaps with it the container around it
            at = _skip(text, at)
            if not open_:
                if at < len(text):
                    raise JSONDecodeError("Extra data", text, at)
                return value
            around = open_[-1]
            if isinstance(around, list):
                around.append(value)
            else:
                around[keys.pop()] = value
            if text.startswith(",", at):
                at = _skip(text, at + 1)
                break
            if not text.startswith("]" if isinstance(around, list) else "}", at):
                raise JSONDecodeError("Expecting ',' delimiter", text, at)
            value, at = open_.pop(), at + 1
        if isinstance(open_[-1], dict):
            key, at = _read_key(text, at, decoder)
            keys.append(key)


def _begin(text: str, at: int, decoder: JSONDecoder) -> tuple[JsonValue, int, bool]:
    """The value at `at`, where reading goes on, and whether it is a container with something in it."""
    bracket = text[at : at + 1]
    if bracket not in ("[", "{"):
        value, at = decoder.raw_decode(text, at)
        return value, at, False
    at = _skip(text, at + 1)
    if text.startswith("]" if bracket == "[" else "}", at):
        return [] if bracket == "[" else {}, at + 1, False
    return [] if bracket == "[" else {}, at, True


def _read_key(text: str, at: int, decoder: JSONDecoder) -> tuple[str, int]:
    """The key at `at`, and where its value begins."""
    if not text.startswith('"', at):
        raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
    key, at = decoder.raw_decode(text, at)
    at = _skip(text, at)
    if not text.startswith(":", at):
        raise JSONDecodeError("Expecting ':' delimiter", text, at)
    return key, _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at

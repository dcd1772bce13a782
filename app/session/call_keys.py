"""What a tool may give its vendor as a key: one for this very call, one for every equal call of the session."""

import hashlib
from collections.abc import Iterator
from typing import Any

from app.session.errors import LimitExceeded
from app.session.values import DEFAULT, decode, encode


def parse_arguments(raw_arguments: str) -> Any:
    """The JSON value that a model's text stands for; empty text is `{}`, and of equal keys the last one counts.

    Raises ValueError for what is not JSON or holds a number beyond all floats, LimitExceeded for what is too deep.
    """
    return decode(raw_arguments, DEFAULT) if raw_arguments else {}


def idempotency_key(session_id: str, call_id: str) -> str:
    """Hex SHA-256 of session id and call id, for vendors whose keys are global."""
    return hashlib.sha256(f"{session_id}\0{call_id}".encode(errors="surrogatepass")).hexdigest()


def argument_key(session_id: str, name: str, raw_arguments: str) -> str:
    """Hex SHA-256 of the ASCII JSON text of `[session id, tool name, arguments]`, without spaces.

    Object keys stand in the order of their code points and numbers that are equal in value are written alike (1, 1.0
    and 1e0; 0 and -0.0). Text that is not JSON counts as that string.
    """
    try:
        arguments = parse_arguments(raw_arguments)
    except (ValueError, LimitExceeded):
        arguments = raw_arguments
    digest = hashlib.sha256()
    for piece in _canonical([session_id, name, arguments]):
        digest.update(piece.encode("ascii"))
    return digest.hexdigest()


def _canonical(value: Any) -> Iterator[str]:
    """The pieces of the text. A stack instead of recursion: a model may nest arguments deeper than Python's stack."""
    pending: list[Any] = [value]  # what is still to be written, the next one last
    while pending:
        item = pending.pop()
        if type(item) is _Piece:
            yield item
        elif type(item) is list:
            pending.append(_Piece("]"))
            for n in range(len(item) - 1, -1, -1):
                pending += (item[n], _Piece("," if n else ""))
            yield "["
        elif type(item) is dict:
            pending.append(_Piece("}"))
            for n, key in enumerate(sorted(item, reverse=True), 1 - len(item)):
                pending += (item[key], _Piece(("," if n else "") + encode(key) + ":"))
            yield "{"
        else:
            yield encode(int(item) if type(item) is float and item.is_integer() else item)


class _Piece(str):
    """Text of the result, told apart from a string among the arguments."""

    __slots__ = ()

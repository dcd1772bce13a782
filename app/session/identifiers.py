"""Which ids are allowed for sessions and messages, and how new ones are made."""

import re
import secrets

from app.session.errors import InvalidId

_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def check_id(value: str) -> str:
    """Return `value` if it is a legal id, else raise InvalidId. Ids are compared code point by code point."""
    if type(value) is not str or not 1 <= len(value) <= 200:
        raise InvalidId(value, "an id is a string of 1 to 200 characters")
    if _FORBIDDEN.search(value):
        raise InvalidId(value, "an id holds no control characters and no unpaired surrogates")
    return value


def new_id() -> str:
    """32 random hexadecimal digits."""
    return secrets.token_hex(16)

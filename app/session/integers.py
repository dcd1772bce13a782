"""Integers of any length as digits and back, within a limit of our own: the interpreter's is for the whole process."""

import math

from app.session.errors import LimitExceeded

NATIVE_DIGITS = 600
"""So many digits the interpreter converts whatever its limit, which cannot be set below 640."""
_NATIVE = 10**NATIVE_DIGITS


def decimal(number: int, max_digits: int) -> str:
    """The digits of `number`, with its sign. Raises LimitExceeded before anything is converted."""
    size = abs(number)
    digits = len(repr(size)) if size < _NATIVE else int(math.log10(size)) + 1  # rounded: one off beside a power of ten
    if digits >= max_digits and size >= 10**max_digits:
        raise LimitExceeded("max_integer_digits", max_digits, max(digits, max_digits + 1))
    if size < _NATIVE:
        return repr(number)
    return ("-" if number < 0 else "") + _padded(size, digits).lstrip("0")


def _padded(number: int, width: int) -> str:
    """The digits of `number`, with zeros before them up to `width`."""
    if width <= NATIVE_DIGITS:
        return repr(number).zfill(width)
    low = width // 2
    left, right = divmod(number, 10**low)
    return _padded(left, width - low) + _padded(right, low)


def integer(digits: str, max_digits: int) -> int:
    """The integer that `digits` write, with a minus or without. Raises LimitExceeded before anything is converted."""
    size = len(digits) - digits.startswith("-")
    if size > max_digits:
        raise LimitExceeded("max_integer_digits", max_digits, size)
    return -_joined(digits[1:]) if size < len(digits) else _joined(digits)


def _joined(digits: str) -> int:
    if len(digits) <= NATIVE_DIGITS:
        return int(digits)
    low = len(digits) // 2
    power: int = 10**low
    return _joined(digits[:-low]) * power + _joined(digits[-low:])

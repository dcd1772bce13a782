"""Equality as the log means it: of types, signs, bits and order of keys, and deeper than `==` could go."""

import struct


def exactly(left: object, right: object) -> bool:
    pairs = [(left, right)]
    while pairs:
        one, other = pairs.pop()
        if type(one) is not type(other):
            return False
        if isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            pairs.extend(zip(one, other, strict=True))
        elif isinstance(one, dict) and isinstance(other, dict):
            if list(one) != list(other):
                return False
            pairs.extend((one[key], other[key]) for key in one)
        elif isinstance(one, float) and isinstance(other, float):
            if struct.pack("<d", one) != struct.pack("<d", other):
                return False
        elif one != other:
            return False
    return True


def nested(levels: int) -> object:
    """Lists and objects in turn, each the only item of the one around it."""
    value: object = []
    for level in range(levels - 1):
        value = [value] if level % 2 else {"k": value}
    return value

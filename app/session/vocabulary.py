"""The extension events that a log may hold beside the built-in ones: each is declared before it is appended."""

from __future__ import annotations

import re
from collections.abc import Iterable

from app.session.errors import ConfigurationError
from app.session.events import CATALOGUE, ExtensionType

_WORD = "[^\\s/\x00-\x1f\x7f-\x9f\ud800-\udfff]+"  # a store keeps it in a column of text
_NAME = re.compile(f"{_WORD}/{_WORD}")


def is_name(type: str) -> bool:
    """Whether it looks like an extension's: `name/word`, and none that is built in."""
    return _NAME.fullmatch(type) is not None and type not in CATALOGUE


def vocabulary(declared: Iterable[ExtensionType]) -> dict[str, ExtensionType]:
    """The declared types by their names.

    Raises ConfigurationError, with every fault, for a name of the wrong form, a built-in one, and one that is declared
    in two ways.
    """
    by_name: dict[str, ExtensionType] = {}
    faults = []
    for kind in declared:
        if not is_name(kind.name):
            faults.append(f"{kind.name!r} is no name for one: it takes name/word, and none that is built in")
        if by_name.setdefault(kind.name, kind) != kind:
            faults.append(f"{kind.name!r} is declared both ignorable and not")
    if faults:
        raise ConfigurationError(f"extension events: {'; '.join(dict.fromkeys(faults))}")
    return by_name

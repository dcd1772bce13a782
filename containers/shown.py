"""The settings as they are shown: each with the value in force, or a mask, and where the value comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from containers.fields import Section
from containers.known import SECRET, Known
from containers.settings import Settings


@dataclass(frozen=True, slots=True)
class Shown:
    """A setting by its dotted name, its value as JSON has it, or MASK, and where the value comes from."""

    name: str
    value: Any
    source: str


MASK = "**********"


def settings_with_sources(settings: Settings) -> list[Shown]:
    """Every setting with its value in force. What may be secret is masked; each entry of a table stands alone."""
    shown = []
    for name in Known(Settings).takes:
        for entry, plain in _entries(name, _value(settings, name)):
            source = settings.source_of(entry)
            is_secret = (
                entry.startswith("persistence.options.") or source.startswith(SECRET) or isinstance(plain, SecretStr)
            )
            shown.append(Shown(entry, MASK if is_secret else _as_json(plain), source))
    return shown


def _entries(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A table's entries, and theirs, by dotted names; another value, and an empty table, as it is."""
    table = {key: getattr(value, key) for key in type(value).model_fields} if isinstance(value, Section) else value
    if not (isinstance(table, dict) and table):
        yield name, value
        return
    for key, entry in table.items():
        yield from _entries(f"{name}.{key}", entry)


def _value(settings: Settings, name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _as_json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value

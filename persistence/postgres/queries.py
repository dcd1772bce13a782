"""The statements of queries.sql by name, for one schema: no other SQL is ever put together."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

from app.session.errors import ConfigurationError

_FILE = Path(__file__).with_name("queries.sql")
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class Queries:
    """What each does is said in queries.sql."""

    find: str
    find_for_update: str
    append: str
    append_together: str
    settle: str
    claim: str
    renew: str
    release: str
    read: str
    read_from: str
    list: str
    list_from_the_newest: str
    strays: str
    bury: str
    drop_events: str
    is_known: str

    @classmethod
    def of(cls, schema: str) -> Queries:
        """The statements for a schema, read from the file. Raises ConfigurationError for an illegal name."""
        _, *sections = with_schema(_FILE.read_text(), schema).split("-- :name ")
        found = dict(section.split("\n", 1) for section in sections)
        return cls(**{field.name: found[field.name].strip() for field in fields(cls)})


def quoted(schema: str) -> str:
    """A schema's name as SQL writes it. Raises ConfigurationError for one that would need more than quotes."""
    if not _SCHEMA.fullmatch(schema):
        raise ConfigurationError(
            f"the schema {schema!r} is not a name: a letter or underscore, then up to 62 letters, digits, _ and -"
        )
    return f'"{schema}"'


def with_schema(sql: str, schema: str) -> str:
    """SQL of ours, for that schema."""
    return sql.replace("@schema@", quoted(schema))

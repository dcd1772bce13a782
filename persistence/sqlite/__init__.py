"""Sessions in one SQLite file: the embedded default, durable with every commit and safe for several processes."""

from persistence.sqlite.backend import SqlitePersistence

__all__ = ["SqlitePersistence"]

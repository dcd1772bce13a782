"""Sessions as files of JSON lines, one each, that a person can read: durable, and safe for several processes."""

from persistence.jsonl.backend import JsonlPersistence

__all__ = ["JsonlPersistence"]

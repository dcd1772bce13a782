"""What a store can say of itself to an operator, beside the contract: whether it is there yet, and what is not well."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from app.session.errors import PersistenceError, StoreUnusable


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: `text` says what there is and, unless all is well, what to do about it.

    A note stands in nobody's way. With an `error` the store cannot be used, or must not be, as it is.
    """

    what: str
    text: str
    is_note: bool = False
    error: PersistenceError | None = None

    @classmethod
    def fault(cls, what: str, error: PersistenceError) -> Finding:
        """What an error says, without the place that every line is about."""
        return cls(what, error.reason if isinstance(error, StoreUnusable) else str(error), error=error)

    @property
    def level(self) -> Literal["ok", "note", "fault"]:
        return "fault" if self.error else "note" if self.is_note else "ok"


@runtime_checkable
class Examinable(Protocol):
    """A store may offer this besides the contract. Neither changes anything, and it needs not be open for them."""

    async def missing(self) -> StoreUnusable | None:
        """What opening would make or bring up to date, as the error of who only reads; None if it would do nothing.

        Raises StoreUnusable if that cannot be told.
        """
        ...

    def examine(self) -> AsyncIterator[Finding]:
        """What there is, line by line; what is found is never raised."""
        ...


@runtime_checkable
class Checkable(Protocol):
    """A store may offer this besides the contract: what no look at its sessions, one by one, can find."""

    async def faults(self) -> Sequence[str]:
        """What is wrong, a sentence each, such as an index that leaves a session out. As slow as reading all."""
        ...


@runtime_checkable
class InFiles(Protocol):
    """A store of a file for each session may offer this besides the contract."""

    def file_of(self, session_id: str) -> Path:
        """Where a session stands; also for the name by which the list shows a file that does not tell whose it is."""
        ...

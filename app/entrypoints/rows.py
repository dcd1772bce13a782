"""All stored sessions, page by page: for what is done with each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol

from app.session.persistence import SessionRow

PAGE = 1000


class Listed(Protocol):
    """What lists sessions: a session store, or the persistence below it."""

    def list(self, limit: int, after: tuple[int, str] | None = None) -> Awaitable[Sequence[SessionRow]]:
        """A page, newest first."""
        ...


async def every_row(sessions: Listed) -> AsyncIterator[SessionRow]:
    """Every stored session, newest first. One that is created or deleted meanwhile may be there or not."""
    after: tuple[int, str] | None = None
    while rows := await sessions.list(PAGE, after):
        for row in rows:
            yield row
        after = (rows[-1].created_at, rows[-1].session_id)

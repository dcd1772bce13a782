"""Rows that another transaction has locked: asked for again; a wait would keep the connection from all others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.session.errors import PersistenceUnavailable

T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1


class Locked(Exception):
    """Another transaction holds the session's row: nothing was done, and the same may be asked again."""


async def until_unlocked(attempt: Callable[[], Awaitable[T]], session_id: str, patience_s: float) -> T:
    """What `attempt` returns once it does not raise Locked. Raises PersistenceUnavailable when that takes longer."""
    deadline = asyncio.get_running_loop().time() + patience_s
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return await attempt()
        except Locked:
            if asyncio.get_running_loop().time() + pause > deadline:
                raise PersistenceUnavailable(session_id, "another transaction holds the session's row") from None
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_S)

"""Tool bodies whose start and end a test sees and decides on."""

from __future__ import annotations

import asyncio
from typing import Any

from app.llm.scripted import call
from app.tools.schema import tool
from app.tools.types import ToolExecution


class Bodies:
    """The tools `safe` (parallel safe) and `alone`; each returns its call id. `order` is what happened.

    A body whose call id is among `held` ends when it is let go, the others at once.
    """

    def __init__(self, *held: str) -> None:
        self.order: list[str] = []
        self.most_at_once = 0
        self._running = 0
        self._started: dict[str, asyncio.Event] = {}
        self._let_go = {call_id: asyncio.Event() for call_id in held}
        self.safe = tool(self._body, name="safe", parallel_safe=True)
        self.alone = tool(self._body, name="alone")

    async def _body(self, execution: ToolExecution, mode: str = "") -> str:
        call_id = execution.call_id
        self.order.append(f"{call_id} starts")
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        self._started.setdefault(call_id, asyncio.Event()).set()
        if call_id in self._let_go:
            await self._let_go[call_id].wait()
        self._running -= 1
        self.order.append(f"{call_id} ends")
        return call_id

    async def started(self, *call_ids: str) -> None:
        for call_id in call_ids:
            await self._started.setdefault(call_id, asyncio.Event()).wait()

    def let_go(self, *call_ids: str) -> None:
        for call_id in call_ids:
            self._let_go[call_id].set()


def calls(*named: str) -> list[Any]:
    """`calls("safe c1", "alone c2")`: the parts of one answer."""
    return [call(name, {}, id=call_id) for name, call_id in (words.split() for words in named)]

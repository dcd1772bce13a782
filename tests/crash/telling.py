"""Events in a few words, so that tests compare whole logs."""

from __future__ import annotations

from collections.abc import Sequence

from app.session.record import SessionEvent
from tests.support.house import shorten


def told(events: Sequence[SessionEvent]) -> list[str]:
    """As `shorten`, and of a result its call and its code or value: `result c1 TOOL_NOT_STARTED`."""
    said: list[str] = []
    for event in events:
        if event.type == "tool/result":
            data = event.data
            said.append(f"result {data['call_id']} {data['error']['code'] if data['is_error'] else data['value']}")
        elif event.type != "assistant/chunk" or said[-1:] != ["chunk*"]:
            said += shorten([event])
    return said

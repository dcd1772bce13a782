"""The post-step listeners that come with the runtime: what a session has cost so far, and what it is about."""

from __future__ import annotations

from typing import ClassVar
from weakref import WeakKeyDictionary, WeakSet

from app.agent.step import Step
from app.messages import TextBlock, UserMessage
from app.session import events as ev
from app.session.session import Session

USAGE_TOTAL = ev.ExtensionType("usage/total", ignorable=True)
SESSION_TITLE = ev.ExtensionType("session/title", ignorable=True)

LONGEST_TITLE = 60


class TokenUsage:
    """Records what the answers of a session have used so far: each count by the name that vendors give it, summed up.

    Only whole numbers at the top of `usage` are counted. A step that brought nothing new records nothing. Each event is
    looked at once; in a resumed session the search for the last total goes back no further than that.
    """

    appends: ClassVar[tuple[ev.ExtensionType, ...]] = (USAGE_TOTAL,)

    def __init__(self) -> None:
        self._counted: WeakKeyDictionary[Session, tuple[int, dict[str, int]]] = WeakKeyDictionary()

    async def __call__(self, step: Step) -> None:
        session = step.session
        start, totals = self._counted.get(session) or _last_total(session)
        counts = [
            (name, count)
            for event in session.events_from(start)
            if event.type == ev.AssistantMessage.type
            for name, count in event.data.get("usage", {}).items()
            if type(count) is int
        ]
        if counts:
            totals = dict(totals)
            for name, count in counts:
                totals[name] = totals.get(name, 0) + count
            step.append(USAGE_TOTAL, totals)
        self._counted[session] = (len(session), totals)


def _last_total(session: Session) -> tuple[int, dict[str, int]]:
    """The seq after the last recorded total, and that total; 0 and nothing if there is none."""
    for seq in range(len(session) - 1, -1, -1):
        (event,) = session.events_from(seq, seq + 1)
        if event.type == USAGE_TOTAL.name:
            return seq + 1, event.data
    return 0, {}


class SessionTitle:
    """Records a title once in a session's life: the first line that its first user message says."""

    appends: ClassVar[tuple[ev.ExtensionType, ...]] = (SESSION_TITLE,)

    def __init__(self) -> None:
        self._settled: WeakSet[Session] = WeakSet()

    async def __call__(self, step: Step) -> None:
        session = step.session
        if session in self._settled:
            return
        if not any(event.type == SESSION_TITLE.name for event in session.events):
            first = next(message for message in session.messages if isinstance(message, UserMessage))
            title = make_title("\n".join(block.text for block in first.content if isinstance(block, TextBlock)))
            if title:
                step.append(SESSION_TITLE, {"title": title})
        self._settled.add(session)


def make_title(text: str) -> str:
    """The first line with something in it, its spaces made single, cut after a word; "" if there is no such line."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    line = next((line for line in lines if line), "")
    if len(line) <= LONGEST_TITLE:
        return line
    whole_words = line[:LONGEST_TITLE].rpartition(" ")[0]
    return f"{whole_words or line[: LONGEST_TITLE - 1]}…"

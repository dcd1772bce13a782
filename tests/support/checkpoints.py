"""What tests of checkpoints count and order: flushes that are asked for, adapters that are opened, batches written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.cancel import CancelSignal
from app.llm.scripted import ScriptedAdapter
from app.llm.types import ChunkStream, LlmRequest
from app.messages import ModelRef, TextBlock, UserMessage
from app.session import events as ev
from app.session.batch import Batch, Reason
from app.session.identifiers import new_id
from app.session.session import Session
from app.session.store import SessionStore
from tests.support.house import House, shorten


class NotingAdapter(ScriptedAdapter):
    """A scripted adapter that notes in `order` when its stream is opened."""

    def __init__(self, order: list[str], steps: Sequence[object] = ()) -> None:
        super().__init__(steps)  # type: ignore[arg-type]  # whatever a script may hold
        self._order = order

    def stream(self, request: LlmRequest) -> ChunkStream:
        self._order.append("adapter")
        return super().stream(request)


def flushes_of(sessions: SessionStore) -> list[Reason]:
    """The reasons of the flushes asked of this store from now on, those that had nothing to write too."""
    seen: list[Reason] = []
    flush = sessions.flush

    async def noted(session: Session, reason: Reason = "caller") -> None:
        seen.append(reason)
        await flush(session, reason)

    sessions.flush = noted  # type: ignore[method-assign]  # the one entrance, watched
    return seen


def request(session_id: str | None = None, signal: CancelSignal | None = None) -> LlmRequest:
    """A request of a caller's own, naming a session or none."""
    messages = [UserMessage((TextBlock("a side question"),))]
    return LlmRequest(ModelRef("script", "test"), messages, session_id=session_id, signal=signal)


async def read(house: House, asked: LlmRequest) -> int:
    """Enter the request's stream and read it to its end; the number of chunks."""
    async with house.llm.stream(asked) as stream:
        return len([chunk async for chunk in stream])


def pend(session: Session, *ids: str) -> None:
    """Have something that is not stored yet: accepted context, one message for each id."""
    for message_id in ids or (new_id(),):
        session.append(ev.InboxAccepted({"id": message_id, "content": "by the way"}, "context"))


def batches(written: Iterable[Batch]) -> list[tuple[str, list[str]]]:
    """Reason and event types of each batch; runs of chunks as one `chunk*`."""
    return [(batch.reason, shorten(batch.events)) for batch in written]

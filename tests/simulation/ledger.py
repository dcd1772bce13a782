"""What really happened outside of the log, and what may not happen, checked in the very moment."""

from __future__ import annotations

from collections import Counter

from app.llm.strict import check_provider_valid
from app.llm.types import LlmError, LlmRequest
from app.session.session import Session
from app.tools.types import ToolExecution
from tests.simulation.store import Server


class Ledger:
    """`entered` and `ended` count, by call id, the bodies begun and those that came to their end."""

    def __init__(self, server: Server) -> None:
        self.entered: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.requests = 0
        self._server = server

    def note_request(self, request: LlmRequest) -> None:
        """Called by the adapter before anything else: what the request rests on is durable."""
        self.requests += 1
        session = request.session
        assert session is not None
        start = next(event.seq for event in reversed(session.events) if event.type == "step/start")
        self._expect_durable(session, start, "a request was sent")
        try:
            check_provider_valid(request.messages)
        except LlmError as error:
            self._server.violations.append(f"request {self.requests}: {error}")
        if request.signal is not None and request.signal.is_cancelled:
            self._server.violations.append("a request was sent after the cancel")

    def note_entered(self, execution: ToolExecution) -> None:
        """Called by a body before anything else: its call is durable, and this is its first time."""
        session, call_id = execution.session, execution.call_id
        assert session is not None
        outer = execution.call_id if execution.parent is None else execution.parent.call_id
        recorded = next(
            (event.seq for event in session.events if event.type == "tool/call" and event.data["call_id"] == outer),
            None,
        )
        if recorded is None:
            self._server.violations.append(f"the body of {call_id} was entered and its call is not recorded")
        else:
            self._expect_durable(session, recorded, f"the body of {call_id} was entered")
        self.entered[call_id] += 1
        if self.entered[call_id] > 1:
            self._server.violations.append(f"the body of {call_id} was entered {self.entered[call_id]} times")
        if execution.parent is None and execution.signal.is_cancelled:
            self._server.violations.append(f"the body of {call_id} was entered after the cancel")

    def _expect_durable(self, session: Session, seq: int, what: str) -> None:
        durable = self._server.durable_events(session.id)[: seq + 1]
        if [event.text for event in durable] != [event.text for event in session.events_from(0, seq + 1)]:
            self._server.violations.append(f"{what} while its events up to seq {seq} were not durable")

"""Tells a turn while it happens: the answer's text as it comes, and a line for what goes on besides."""

from __future__ import annotations

from app.entrypoints.bodies import retry_text
from app.entrypoints.output import Output, OutputClosed
from app.session import events as ev
from app.session.record import SessionEvent, parse
from app.session.session import Session

_MOST = 400
"""Characters of one text that a line tells; the log has all of them."""


class Narrator:
    """Observes a live session. `end` is the last turn's end, `failure` the last notice of a failure.

    With `Output.is_json` each event is one line of standard output instead, in the form of the log.
    """

    def __init__(self, output: Output, session: Session) -> None:
        self.end: ev.TurnEnd | None = None
        self.failure: ev.AgentError | None = None
        self.was_discarded = False
        self._output = output
        self._printed = 0
        self._block: int | None = None
        self._is_mute = False
        session.observe(self._observe)

    def _observe(self, subject: SessionEvent | ev.Notice) -> None:
        try:
            if isinstance(subject, SessionEvent):
                self._tell(subject)
            elif isinstance(subject, ev.AgentError):
                self.failure = subject
                if subject.turn is None:  # a turn's own end is told by whoever waits for it
                    self._output.warning(f"{subject.code}: {subject.message}")
        except OutputClosed as error:  # the turn goes on, and its log has it all
            self._mute(error)

    def _tell(self, event: SessionEvent) -> None:
        if self._output.is_json and not self._is_mute:
            self._output.record(event.line)
        if event.type not in ev.CATALOGUE:
            return
        data = parse(event.type, event.data)
        if isinstance(data, ev.TurnEnd):
            self.end = data
            self._end_answer()
        elif isinstance(data, ev.InboxDiscarded):
            self.was_discarded = True
        elif not self._output.is_json:
            self._tell_progress(data)

    def _tell_progress(self, data: ev.EventData) -> None:
        match data:
            case ev.StepStart():
                self._printed, self._block = 0, None
            case ev.AssistantChunk(chunk=chunk) if chunk["kind"] == "text_delta":
                self._say(chunk["text"], chunk["index"])
            case ev.AssistantMessage():
                self._finish(data)
            case ev.ToolCall():
                self._note(f"  {data.call_id} {data.name} {data.arguments[:_MOST]}")
            case ev.ToolResult(error=dict() as error):
                self._note(f"  {data.call_id} {error['code']}: {error['message'][:_MOST]}")
            case ev.LlmRetry():
                void = f"; the {self._printed} characters above are void" if self._printed else ""
                self._note(f"  retry {retry_text(data)}{void}")

    def _say(self, text: str, block: int) -> None:
        if self._block not in (None, block):
            self._answer("\n")
        self._block = block
        self._printed += len(text)
        self._answer(text)

    def _finish(self, message: ev.AssistantMessage) -> None:
        if not self._printed:  # it came whole, without chunks
            for index, block in enumerate(message.content):
                if block["type"] == "text":
                    self._say(block["text"], index)
        self._end_answer()
        if message.finish == "max_tokens":
            self._output.warning("the answer hit the limit of max_tokens and is cut there")

    def _answer(self, text: str) -> None:
        if not self._is_mute:
            self._output.answer(text)

    def _end_answer(self) -> None:
        if not self._is_mute:
            self._output.end_answer()

    def _note(self, text: str) -> None:
        self._end_answer()
        self._output.note((text, "dim"))

    def _mute(self, error: OutputClosed) -> None:
        if not self._is_mute:
            self._is_mute = True
            if not error.is_gone:
                self._output.warning(f"{error}; `beforehand show` has all of it")

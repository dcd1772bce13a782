"""Which calls of a log may have acted without anybody knowing: asked before an equal call is let through."""

from app.session.call_keys import argument_key
from app.session.record import SessionEvent

_UNKNOWN_EFFECT = ("TOOL_OUTCOME_UNKNOWN", "ABORTED", "TOOL_TIMEOUT")


class UnknownCalls:
    """The top-level calls of one log whose effect is not known: an index, fed one event at a time.

    Feeding it parses nothing but the results that count; their keys are computed when somebody asks.
    """

    def __init__(self) -> None:
        self._of_step: list[SessionEvent] = []
        self._without_key: list[tuple[str, str, str, str]] = []  # call id, code, name, raw arguments
        self._by_key: dict[str, list[tuple[str, str]]] = {}

    def __bool__(self) -> bool:
        """Whether there is any such call: if not, nobody needs a key."""
        return bool(self._without_key or self._by_key)

    def add(self, event: SessionEvent) -> None:
        """Take in the next event of the log."""
        if event.type == "tool/call":
            self._of_step.append(event)
        elif event.type == "step/end":
            self._of_step.clear()
        elif event.type == "tool/result" and any(f'"{code}"' in event.text for code in _UNKNOWN_EFFECT):
            self._add_result(event)

    def _add_result(self, event: SessionEvent) -> None:
        result = event.data
        code = result["error"]["code"] if result["is_error"] else None  # the text searched for may stand in a value
        if code not in _UNKNOWN_EFFECT:
            return
        for call in (recorded.data for recorded in self._of_step):
            if call["call_id"] == result["call_id"] and call["effects"] != "read_only":
                self._without_key.append((call["call_id"], code, call["name"], call["arguments"]))

    def matching(self, session_id: str, key: str) -> tuple[tuple[str, str], ...]:
        """(call id, code) of those with this argument key, oldest first. `session_id` is that of the log, always."""
        for call_id, code, name, raw_arguments in self._without_key:
            self._by_key.setdefault(argument_key(session_id, name, raw_arguments), []).append((call_id, code))
        self._without_key.clear()
        return tuple(self._by_key.get(key, ()))

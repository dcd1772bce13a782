"""What a log should be, told one event after another: what each turn takes, and what becomes of each message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from app.session import events as ev
from app.session.record import SessionEvent
from tests.support.recording import data_of_event
from tests.support.walk import EXTENSION, Walk

Fate: TypeAlias = Literal["pending", "taken", "discarded"]


class Account(Walk):
    """A walk that is led along a log. `fates` has every message that was accepted."""

    def __init__(self, events: Iterable[SessionEvent] = ()) -> None:
        super().__init__()
        self.fates: dict[str, Fate] = {}
        for event in events:
            self.see(event)

    @property
    def waking(self) -> list[str]:
        return self.free_of("next_turn", "next_step")

    def see(self, event: SessionEvent) -> None:
        """The next event of the log. Fails if it may not come here."""
        data = data_of_event(event)
        assert event.seq == len(self.events)
        assert (EXTENSION if isinstance(data, ev.Extension) else data.type) in self.may_come()
        match data:
            case ev.InboxAccepted():
                assert data.message["id"] not in self.fates
                self.fates[data.message["id"]] = "pending"
            case ev.InboxDiscarded():
                self._settle(data.ids, "discarded")
            case ev.TurnStart():
                assert data.turn == self.turn + 1
                assert data.input == [*self.free_of("context"), self.waking[0]]
            case ev.UserMessage():
                assert data.message["id"] == (self.announced or self.free_of("context") or self.free_of("next_step"))[0]
                self._settle([data.message["id"]], "taken")
            case ev.TurnEnd(error=error):
                assert error is None or error["code"] != "INTERNAL"
        self.take(data)

    def _settle(self, ids: list[str], fate: Fate) -> None:
        for id in ids:
            assert self.fates[id] == "pending"
            self.fates[id] = fate

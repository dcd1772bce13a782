"""What is told after a step: the listeners, one after another, in the order of their list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from app.cancel import CancelSignal
from app.causes import describe
from app.middleware import CHECKPOINT, Named
from app.session import events as ev
from app.session.errors import IllegalEvent, LimitExceeded
from app.session.session import Session

Accept: TypeAlias = Callable[[Any, ev.Placement], str]


@dataclass(frozen=True, slots=True)
class Step:
    """A step that has recorded its assistant message and all results, as a listener sees it.

    The signal may be cancelled already. `appends` are the extension types that this listener declared.
    """

    session: Session
    turn: int
    step: int
    signal: CancelSignal
    accept: Accept
    appends: tuple[ev.ExtensionType, ...] = ()

    def append(self, kind: ev.ExtensionType, body: ev.JsonObject) -> None:
        """Record an event of a type that this listener declared. Raises IllegalEvent for any other."""
        if kind not in self.appends:
            raise IllegalEvent(
                self.session.state.turn.state, kind.name, "the listener does not declare that it appends it"
            )
        self.session.append(ev.Extension(kind, body))

    def send(self, content: Any) -> str:
        """Start another turn after this one; returns the message id."""
        return self.accept(content, "next_turn")

    def steer(self, content: Any) -> str:
        """Have one more step see this; returns the message id."""
        return self.accept(content, "next_step")

    def inject(self, content: Any) -> str:
        """Have the next step, or the next turn, see this; returns the message id."""
        return self.accept(content, "context")


PostStepListener: TypeAlias = Callable[[Step], Awaitable[None]]
"""Awaited after each step. `appends`, if it has that, are the types it records. Only raising stops the rest."""


class ListenerFailed(Exception):
    """A post-step listener raised; `__cause__` is what it raised."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(f"post-step listener {name!r} failed: {describe(error)}")


class CheckpointFailed(Exception):
    """A flush inside the turn failed, and nothing may go on as if it had not; `__cause__` is its error."""


async def run_listeners(listeners: Sequence[Named[PostStepListener]], step: Step) -> None:
    """Await each listener in order. Raises ListenerFailed, CheckpointFailed, LimitExceeded."""
    for entry in listeners:
        if step.session.is_lost:
            return
        if entry.name == CHECKPOINT:
            await _checkpoint(entry.call, step)
            continue
        try:
            await entry.call(replace(step, appends=getattr(entry.call, "appends", ())))
        except LimitExceeded:
            raise
        except Exception as error:  # a listener is foreign code and may raise anything
            raise ListenerFailed(entry.name, error) from error


async def _checkpoint(call: PostStepListener, step: Step) -> None:
    try:
        await call(step)
    except Exception as error:  # whatever the policy's flush raised
        raise CheckpointFailed(str(error)) from error

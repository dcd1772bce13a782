"""One turn while it runs: its number, its signal, and the one way in which the loop records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from app.agent.step import Accept, CheckpointFailed
from app.cancel import CancelSignal
from app.messages import Failure, ModelRef
from app.session import events as ev
from app.session.session import Session

AfterAppend: TypeAlias = Callable[[Session], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What requests are made with. Without adapter or model name a turn ends with CONFIGURATION."""

    adapter: str | None = None
    name: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    system: str | None = None

    @property
    def model(self) -> ModelRef | None:
        return None if self.adapter is None or self.name is None else ModelRef(self.adapter, self.name)


class TurnFailed(Exception):
    """The turn ends with an error of this code; `step` is the step that failed, if one was open."""

    def __init__(self, code: str, message: str, step: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.step = step


@dataclass(slots=True)
class Turn:
    """A running turn. `is_first_request` holds for the first request that its agent makes."""

    session: Session
    config: ModelConfig
    signal: CancelSignal
    accept: Accept
    after_append: AfterAppend
    is_first_request: bool = True
    hit_max_tokens: bool = False
    earlier_failures: list[Failure] = field(default_factory=list)

    @property
    def number(self) -> int:
        return self.session.state.turn.turn

    @property
    def step(self) -> int:
        return self.session.state.turn.step

    @property
    def must_stop(self) -> bool:
        """Cancelled or lost: nothing new is started."""
        return self.signal.is_cancelled or self.session.is_lost

    async def record(self, *events: ev.EventData) -> None:
        """Append a group, and do what the checkpoint policy does after it. Raises CheckpointFailed, and as append."""
        self.session.append(*events)
        await self.recorded()

    async def recorded(self) -> None:
        """What the checkpoint policy does after a group was appended. Raises CheckpointFailed."""
        try:
            await self.after_append(self.session)
        except Exception as error:  # whatever the policy's flush raised
            raise CheckpointFailed(str(error)) from error

    async def take_in(self) -> bool:
        """Take the pending context and steering messages in; whether there was steering among them."""
        if self.must_stop:
            return False
        state = self.session.state
        steering = state.pending_of("next_step")
        taken = [
            ev.UserMessage(self.number, entry.value, entry.placement)
            for entry in (*state.pending_of("context"), *steering)
        ]
        if taken:
            await self.record(*taken)
        return bool(steering)

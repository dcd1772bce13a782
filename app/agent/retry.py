"""Who decides whether a failed model request is tried again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.cancel import CancelSignal
from app.messages import Failure


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after `delay_ms`. `max_retries` is told in the log, if the policy has such a number."""

    delay_ms: int
    max_retries: int | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """The turn ends with this failure."""


class RetryPolicy(Protocol):
    """Asked after a failed model request and never for anything else.

    `earlier` are the failures before this one without a success between. What it raises counts as Fail.
    """

    async def __call__(
        self, failure: Failure, earlier: Sequence[Failure], turn: int, step: int, signal: CancelSignal
    ) -> Retry | Fail: ...

"""A retry policy that keeps what it was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.agent.retry import Fail, Retry
from app.cancel import CancelSignal
from app.messages import Failure


@dataclass
class Asked:
    """Retries so often in a run; `asked` are the code of each failure and those of the earlier ones."""

    retries: int = 0
    delay_ms: int = 0
    asked: list[tuple[str, list[str]]] = field(default_factory=list)

    async def __call__(
        self, failure: Failure, earlier: Sequence[Failure], turn: int, step: int, signal: CancelSignal
    ) -> Retry | Fail:
        self.asked.append((failure.code, [one.code for one in earlier]))
        return Retry(self.delay_ms) if len(earlier) < self.retries else Fail()

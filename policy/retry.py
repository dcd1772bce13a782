"""The shipped retry policy: what passes by itself is tried again, a few times, ever later."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from app.agent.retry import Fail, Retry
from app.cancel import CancelSignal
from app.messages import Failure

PASSING = frozenset(["RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT", "STREAM_CLOSED", "EMPTY_RESPONSE"])


class BackoffRetryPolicy:
    """At most `max_retries` in one run, after `base_ms`, doubled each time, never above `cap_ms`.

    A vendor's own wish is used as it is; if it is above `cap_ms`, waiting is pointless and the turn fails. `jitter`
    from 0 to 1 is the part of each delay of ours that chance may take off: `chance` gives numbers from 0 to below 1.
    With a `budget_ms`, the delays of one run together are never longer.
    """

    def __init__(
        self,
        max_retries: int = 2,
        base_ms: int = 500,
        cap_ms: int = 20_000,
        *,
        jitter: float = 0.0,
        budget_ms: int | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._max_retries = max_retries
        self._base_ms = base_ms
        self._cap_ms = cap_ms
        self._jitter = jitter
        self._budget_ms = budget_ms
        self._chance = chance

    async def __call__(
        self, failure: Failure, earlier: Sequence[Failure], turn: int, step: int, signal: CancelSignal
    ) -> Retry | Fail:
        if failure.code not in PASSING or len(earlier) >= self._max_retries:
            return Fail()
        # What was really waited is not kept: no policy has a state. Without jitter it is never less than that.
        delays = [self._longest_ms(one, place) for place, one in enumerate((*earlier, failure))]
        if delays[-1] > self._cap_ms or (self._budget_ms is not None and sum(delays) > self._budget_ms):
            return Fail()
        taken_off = 0.0 if failure.retry_after_ms is not None else self._jitter * self._chance()
        return Retry(round(delays[-1] * (1 - taken_off)), self._max_retries)

    def _longest_ms(self, failure: Failure, place: int) -> int:
        """How long to wait after the failure at this place of its run, before chance takes anything off."""
        wish = failure.retry_after_ms
        return min(self._base_ms * 2**place, self._cap_ms) if wish is None else wish

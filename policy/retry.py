"""The shipped retry policy: what passes by itself is tried again, a few times, ever later."""

from __future__ import annotations

from collections.abc import Sequence

from app.agent.retry import Fail, Retry
from app.cancel import CancelSignal
from app.messages import Failure

PASSING = frozenset(["RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT", "STREAM_CLOSED", "EMPTY_RESPONSE"])


class BackoffRetryPolicy:
    """At most `max_retries` in one run, after `base_ms`, doubled each time, never above `cap_ms`.

    A vendor's own wish is used as it is; if it is above `cap_ms`, waiting is pointless and the turn fails.
    """

    def __init__(self, max_retries: int = 2, base_ms: int = 500, cap_ms: int = 20_000) -> None:
        self._max_retries = max_retries
        self._base_ms = base_ms
        self._cap_ms = cap_ms

    async def __call__(
        self, failure: Failure, earlier: Sequence[Failure], turn: int, step: int, signal: CancelSignal
    ) -> Retry | Fail:
        if failure.code not in PASSING or len(earlier) >= self._max_retries:
            return Fail()
        wish = failure.retry_after_ms
        if wish is not None:
            return Fail() if wish > self._cap_ms else Retry(wish, self._max_retries)
        return Retry(min(self._base_ms * 2 ** len(earlier), self._cap_ms), self._max_retries)

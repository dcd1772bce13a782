"""When the shipped retry policy tries again, and after how long."""

from collections.abc import Callable

import pytest

from app.agent.retry import Fail, Retry
from app.cancel import CancelSignal
from app.messages import Failure
from containers.application import build
from containers.settings import load_settings
from policy.retry import BackoffRetryPolicy

BUSY = Failure("busy", "SERVER")


async def delays(policy: BackoffRetryPolicy, *failures: Failure) -> list[int | None]:
    """What the policy answers to each failure of one run: a delay in ms, or None where it gives up."""
    answers = [
        await policy(failure, failures[:place], 1, place + 1, CancelSignal()) for place, failure in enumerate(failures)
    ]
    return [answer.delay_ms if isinstance(answer, Retry) else None for answer in answers]


def chance(*numbers: float) -> Callable[[], float]:
    return iter(numbers).__next__


async def test_each_delay_is_twice_the_last_one_up_to_the_cap():
    policy = BackoffRetryPolicy(5, 500, 3_000)
    assert await delays(policy, *[BUSY] * 6) == [500, 1_000, 2_000, 3_000, 3_000, None]


@pytest.mark.parametrize(("jitter", "expected"), [(0.2, [500, 900, 1_620]), (1.0, [500, 500, 200])])
async def test_jitter_takes_off_what_chance_says_and_never_adds(jitter: float, expected: list[int]):
    policy = BackoffRetryPolicy(3, 500, jitter=jitter, chance=chance(0.0, 0.5, 0.95 if jitter < 1 else 0.9))
    assert await delays(policy, BUSY, BUSY, BUSY) == expected


async def test_a_vendor_is_waited_for_exactly_as_long_as_it_asks():
    asked = Failure("slow down", "RATE_LIMIT", retry_after_ms=7_000)
    assert await delays(BackoffRetryPolicy(jitter=1.0, chance=chance()), asked) == [7_000]


async def test_a_wish_above_the_cap_fails():
    asked = Failure("slow down", "RATE_LIMIT", retry_after_ms=20_001)
    assert await delays(BackoffRetryPolicy(cap_ms=20_000), asked) == [None]


@pytest.mark.parametrize(
    ("budget_ms", "expected"),
    [
        (0, [None, None, None, None]),
        (1_499, [500, None, None, None]),
        (1_500, [500, 1_000, None, None]),
        (None, [500, 1_000, 2_000, 4_000]),
    ],
)
async def test_the_delays_of_one_run_together_stay_within_the_budget(budget_ms: int | None, expected: list[int | None]):
    assert await delays(BackoffRetryPolicy(4, budget_ms=budget_ms), *[BUSY] * 4) == expected


async def test_a_vendors_wish_counts_against_the_budget():
    asked = Failure("slow down", "RATE_LIMIT", retry_after_ms=1_100)
    policy = BackoffRetryPolicy(4, budget_ms=2_000)
    assert await delays(policy, BUSY, asked) == [500, 1_100]
    assert await delays(policy, asked, BUSY) == [1_100, None]


@pytest.mark.parametrize(
    "code", ["AUTH", "QUOTA", "CONTEXT_WINDOW_EXCEEDED", "NO_ADAPTER", "INVALID_STREAM", "UNKNOWN"]
)
async def test_what_does_not_pass_by_itself_is_not_tried_again(code: str):
    answer = await BackoffRetryPolicy()(Failure("no", code), (), 1, 1, CancelSignal())
    assert answer == Fail()


async def test_the_settings_reach_the_policy():
    settings = load_settings("test", retry={"max": 3, "base_ms": 100, "cap_ms": 300, "jitter": 1.0, "budget_ms": 350})
    policy = build(settings).loop._retry
    assert isinstance(policy, BackoffRetryPolicy)
    policy._chance = chance(0.5, 0.25)
    assert await delays(policy, BUSY, BUSY, BUSY) == [50, 150, None]

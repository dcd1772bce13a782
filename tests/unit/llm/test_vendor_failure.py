"""Each shape in which vendors refuse, as the failure that it counts as."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from app.llm.vendor_failure import retry_after_ms, status_failure, stream_failure
from app.messages import Failure
from tests.support.vendors import anthropic_error, openai_error

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CONTEXT = "This model's maximum context length is 128000 tokens."

REFUSALS: list[tuple[int, Any, str]] = [
    (401, openai_error("Incorrect API key provided", "invalid_request_error", "invalid_api_key"), "AUTH"),
    (403, openai_error("Country not supported", "request_forbidden"), "AUTH"),
    (429, openai_error("Rate limit reached for gpt-x", "tokens", "rate_limit_exceeded"), "RATE_LIMIT"),
    (429, openai_error("Request too large for the context window limit per min", "tokens"), "RATE_LIMIT"),
    (429, openai_error("You exceeded your current quota", "insufficient_quota", "insufficient_quota"), "QUOTA"),
    (402, openai_error("Insufficient Balance", "unknown_error"), "QUOTA"),
    (400, openai_error(CONTEXT, "invalid_request_error", "context_length_exceeded"), "CONTEXT_WINDOW_EXCEEDED"),
    (
        400,
        {"error": {"code": 400, "message": "too big", "type": "exceed_context_size_error"}},
        "CONTEXT_WINDOW_EXCEEDED",
    ),
    (400, {"object": "error", "message": CONTEXT, "code": 400}, "CONTEXT_WINDOW_EXCEEDED"),
    (400, openai_error("Unknown parameter: 'x'", "invalid_request_error"), "UNKNOWN"),
    (404, openai_error("The model `x` does not exist", "invalid_request_error", "model_not_found"), "UNKNOWN"),
    (404, {"error": "model 'x' not found"}, "UNKNOWN"),
    (422, {"detail": "Field required"}, "UNKNOWN"),
    (500, openai_error("The server had an error", "server_error"), "SERVER"),
    (503, "upstream connect error", "SERVER"),
    (504, "<html>504 Gateway Time-out</html>", "TIMEOUT"),
    (408, {}, "TIMEOUT"),
    (401, anthropic_error("invalid x-api-key", "authentication_error"), "AUTH"),
    (403, anthropic_error("no permission", "permission_error"), "AUTH"),
    (400, anthropic_error("Your credit balance is too low", "invalid_request_error"), "QUOTA"),
    (402, anthropic_error("Check your payment", "billing_error"), "QUOTA"),
    (400, anthropic_error("prompt is too long: 210000 > 200000", "invalid_request_error"), "CONTEXT_WINDOW_EXCEEDED"),
    (413, anthropic_error("Request exceeds the maximum size", "request_too_large"), "CONTEXT_WINDOW_EXCEEDED"),
    (429, anthropic_error("This request would exceed your rate limit", "rate_limit_error"), "RATE_LIMIT"),
    (500, anthropic_error("Internal server error", "api_error"), "SERVER"),
    (529, anthropic_error("Overloaded", "overloaded_error"), "SERVER"),
    (307, "", "UNKNOWN"),
]


@pytest.mark.parametrize(("status", "body", "code"), REFUSALS)
def test_a_refusal_has_the_code_of_its_kind_and_the_vendors_words(status: int, body: Any, code: str) -> None:
    failure = status_failure(status, body, {"x-request-id": "req_1"}, NOW)
    assert (failure.code, failure.status, failure.request_id) == (code, status, "req_1")
    words = [body.get("error", body)] if isinstance(body, dict) else [body]
    said = words[0] if isinstance(words[0], str) else words[0].get("message") or words[0].get("detail", "")
    assert failure.message == (said or f"the server answered with HTTP status {status}")


@pytest.mark.parametrize(
    ("body", "code", "status"),
    [
        (openai_error("The server had an error", "server_error")["error"], "SERVER", None),
        (openai_error("Rate limit reached", "requests", "rate_limit_exceeded")["error"], "RATE_LIMIT", None),
        (openai_error("quota", "insufficient_quota")["error"], "QUOTA", None),
        ({"message": CONTEXT, "type": "BadRequestError", "code": 400}, "CONTEXT_WINDOW_EXCEEDED", 400),
        ({"message": "bad", "code": 429}, "RATE_LIMIT", 429),
        ("boom", "SERVER", None),
        (anthropic_error("Overloaded", "overloaded_error"), "SERVER", None),
        (anthropic_error("slow down", "rate_limit_error"), "RATE_LIMIT", None),
        (anthropic_error("bad", "invalid_request_error"), "UNKNOWN", None),
        (anthropic_error("no", "authentication_error"), "AUTH", None),
        (anthropic_error("late", "timeout_error"), "TIMEOUT", None),
        (None, "SERVER", None),
    ],
)
def test_an_error_inside_a_stream_has_the_code_of_its_kind(body: Any, code: str, status: int | None) -> None:
    failure = stream_failure(body, {"request-id": "req_2"}, NOW)
    assert (failure.code, failure.status, failure.request_id) == (code, status, "req_2")


@pytest.mark.parametrize(
    ("headers", "wish"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3_000),
        ({"retry-after": "0.25"}, 250),
        ({"retry-after-ms": "1500.4", "retry-after": "9"}, 1_500),
        ({"retry-after": "Fri, 02 Jan 2026 03:05:05 GMT"}, 60_000),
        ({"retry-after": "Fri, 02 Jan 2026 03:04:00 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after-ms": "nan"}, None),
        ({"retry-after-ms": "inf"}, None),
        ({"retry-after": "9" * 400}, None),
    ],
)
def test_the_wish_to_wait_is_read_as_seconds_milliseconds_or_a_date(headers: dict[str, str], wish: int | None) -> None:
    assert retry_after_ms(headers, NOW) == wish


def test_the_request_id_may_stand_in_the_body() -> None:
    assert status_failure(400, anthropic_error("bad", "invalid_request_error"), {}, NOW) == Failure(
        "bad", "UNKNOWN", 400, None, "req_0011"
    )


def test_a_long_answer_is_cut() -> None:
    assert len(status_failure(500, "x" * 100_000, {}, NOW).message) == 2_000

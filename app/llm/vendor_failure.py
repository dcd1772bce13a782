"""Why a vendor's request failed, in our codes: read off the status, the error's type, and where need be its words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from app.messages import Failure

MOST_CHARACTERS = 2_000

_QUOTA = re.compile(
    r"insufficient_quota|billing|insufficient.balance|credit balance|exceeded your current quota", re.IGNORECASE
)
_CONTEXT = re.compile(
    r"context_length_exceeded|exceed_context|context (length|window|size|limit)|prompt is too long|input is too long"
    r"|request_too_large",
    re.IGNORECASE,
)
_BY_WORDS = (
    (re.compile(r"authentication|permission|invalid_api_key|unauthorized", re.IGNORECASE), "AUTH"),
    (re.compile(r"rate_limit", re.IGNORECASE), "RATE_LIMIT"),
    (re.compile(r"timeout", re.IGNORECASE), "TIMEOUT"),
    (re.compile(r"overloaded|unavailable|api_error|server_?error|internal", re.IGNORECASE), "SERVER"),
)
_BY_STATUS = {
    401: "AUTH",
    402: "QUOTA",
    403: "AUTH",
    408: "TIMEOUT",
    413: "CONTEXT_WINDOW_EXCEEDED",
    429: "RATE_LIMIT",
    504: "TIMEOUT",
}


def status_failure(status: int, body: object, headers: Mapping[str, str], now: datetime) -> Failure:
    """The failure of an answer with this HTTP status. `body` is what it said, decoded if it was JSON."""
    error = _error_object(body)
    message, kind = _message(error, body), _kind(error)
    refused = 400 <= status < 500
    code: str | None
    if _QUOTA.search(f"{kind} {message}") and refused:
        code = "QUOTA"
    elif _CONTEXT.search(f"{kind} {message}") and refused and status != 429:
        code = "CONTEXT_WINDOW_EXCEEDED"
    else:
        code = _BY_STATUS.get(status) or ("SERVER" if status >= 500 else _by_words(kind))
    return Failure(
        message or f"the server answered with HTTP status {status}",
        code or "UNKNOWN",
        status,
        retry_after_ms(headers, now),
        request_id(headers, body),
    )


def stream_failure(body: object, headers: Mapping[str, str], now: datetime) -> Failure:
    """The failure that a stream told of after it had begun, when the HTTP status had long been a good one."""
    error = _error_object(body)
    number = error.get("code")
    if type(number) is int and 400 <= number < 600:
        return status_failure(number, body, headers, now)
    message, kind = _message(error, body), _kind(error)
    code: str | None
    if _QUOTA.search(f"{kind} {message}"):
        code = "QUOTA"
    elif _CONTEXT.search(f"{kind} {message}"):
        code = "CONTEXT_WINDOW_EXCEEDED"
    else:
        code = _by_words(kind) or ("UNKNOWN" if "invalid_request" in kind else "SERVER")
    return Failure(
        message or "the server broke off its stream with an error", code, request_id=request_id(headers, body)
    )


def retry_after_ms(headers: Mapping[str, str], now: datetime) -> int | None:
    """What the headers wish, or None: milliseconds, seconds, or a date, which is compared with `now`."""
    try:
        if (text := headers.get("retry-after-ms")) is not None:
            return max(0, round(float(text)))
        text = headers.get("retry-after", "")
        if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text):
            return round(float(text) * 1000)
        date = parsedate_to_datetime(text)
        at = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0, round((at - now).total_seconds() * 1000))
    except (ValueError, OverflowError):  # neither, or no finite number
        return None


def request_id(headers: Mapping[str, str], body: object = None) -> str | None:
    """What the vendor's people ask for."""
    found = headers.get("x-request-id") or headers.get("request-id")
    if not found and isinstance(body, Mapping):
        found = body.get("request_id")
    return found if isinstance(found, str) and found else None


def _by_words(kind: str) -> str | None:
    return next((code for words, code in _BY_WORDS if words.search(kind)), None)


def _error_object(body: object) -> Mapping[str, Any]:
    """The object that tells of the error: `{"error": {...}}` with most, the body itself with some."""
    if not isinstance(body, Mapping):
        return {}
    inner = body.get("error")
    return inner if isinstance(inner, Mapping) else body


def _kind(error: Mapping[str, Any]) -> str:
    return " ".join(text for key in ("type", "code") if isinstance(text := error.get(key), str))


def _message(error: Mapping[str, Any], body: object) -> str:
    told = (error.get(key) for key in ("message", "error", "detail"))
    text = next((text for text in told if isinstance(text, str) and text), body if isinstance(body, str) else "")
    text = " ".join(text.split())
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."

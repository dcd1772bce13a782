"""An adapter over a vendor's own SDK: one HTTP request for each of ours, whose retries are switched off.

The SDK is imported when the first request is made. Whatever it raises becomes one of our failures, and the key is in
none of them. The variables that SDKs read behind one's back (OPENAI_API_KEY, ANTHROPIC_BASE_URL, ...) are not read.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

from app.causes import describe
from app.llm.types import LlmError, LlmRequest
from app.llm.vendor_failure import request_id, status_failure, stream_failure
from app.llm.wire import JsonObject
from app.messages import Failure, Finish, StreamChunk

if TYPE_CHECKING:
    import httpx2


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and as whom to ask. `base_url` None is the vendor's own address, which takes nobody without a key.

    `options` are keys of the request's body that are the vendor's own. `timeout_s` is how long nothing at all may come.
    `key_hint` says how the key is set.
    """

    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    connect_timeout_s: float = 10.0
    timeout_s: float = 300.0
    key_hint: str = "give it an api_key"

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(text for text in (self.api_key, *self.headers.values()) if text)


class Reading(Protocol):
    """Makes chunks of a vendor's events. `finish` is known once the answer is whole; `is_over`: nothing more is due."""

    @property
    def finish(self) -> Finish | None: ...

    @property
    def is_over(self) -> bool: ...

    def take(self, data: object) -> Iterable[StreamChunk]:
        """The chunks of one event. Raises LlmError INVALID_STREAM for what no event looks like."""
        ...


class VendorAdapter(ABC):
    """What the adapters of the vendors share; each says how a body is made, posted and read."""

    sdk: ClassVar[str]
    """The module of the vendor's SDK, which is also the name of our extra and of the kind of adapter."""
    address: str
    path: ClassVar[str]

    def __init__(self, name: str, endpoint: Endpoint, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.name = name
        self.endpoint = endpoint
        self._now = now
        self._tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.base_url}>"

    @property
    def base_url(self) -> str:
        return self.endpoint.base_url or self.address

    @abstractmethod
    def body(self, request: LlmRequest) -> JsonObject:
        """The JSON body of the request."""

    @abstractmethod
    def reading(self, request: LlmRequest) -> Reading:
        """What reads the answer."""

    @abstractmethod
    def client(self, http: httpx2.AsyncClient, key: str) -> Any:
        """The SDK's client, over `http`, without retries of its own."""

    def lacks(self) -> Failure | None:
        """Why no request could be made, found without making one; None if nothing is missing."""
        if find_spec(self.sdk) is None:
            how = f"pip install 'beforehand[{self.sdk}]'"
            return Failure(f"{self.name}: the package {self.sdk!r} is not installed; {how}", "NO_ADAPTER")
        if self.endpoint.api_key is None and self.endpoint.base_url is None:
            return Failure(f"{self.name}: no key is set for {self.address}; {self.endpoint.key_hint}", "AUTH")
        if any(not text.isascii() or not text.isprintable() for text in self.endpoint.secrets):
            return Failure(f"{self.name}: its key, or a header, holds characters that HTTP does not take", "AUTH")
        return None

    async def stream(self, request: LlmRequest) -> AsyncGenerator[StreamChunk, None]:
        """As app.llm.types.Adapter says. Closing it, or cancelling the wait for a chunk, closes the connection."""
        if (missing := self.lacks()) is not None:
            raise LlmError(missing)
        # Seconds of imports, at the first request only: in a thread, so that other sessions go on meanwhile.
        sdk: Any = await asyncio.to_thread(importlib.import_module, self.sdk)
        headers: Mapping[str, str] = {}
        try:
            async with self._http() as http:
                client = self.client(http, self.endpoint.api_key or "none")
                # The header variables of the SDKs' own have no off switch: what they brought is replaced.
                client._custom_headers = dict(self.endpoint.headers)  # noqa: SLF001  # see the line above
                events = await client.post(
                    self.path,
                    body=self.body(request),
                    cast_to=object,
                    stream=True,
                    stream_cls=sdk.AsyncStream[object],  # events as plain JSON: models of a newer API are read as well
                )
                async with events:
                    headers = events.response.headers
                    reading = self.reading(request)
                    is_silent = True
                    async for data in events:
                        is_silent = False
                        for chunk in reading.take(data):
                            yield chunk
                        if reading.is_over:
                            break
                    if reading.finish is not None:
                        yield reading.finish
                    elif is_silent:
                        _check_is_stream(headers)
        except LlmError:
            raise
        except Exception as error:  # of the SDK, its HTTP library or the network
            # Not `from error`: it holds the request, and with it the key.
            raise LlmError(self._without_secrets(self._failure(error, sdk, headers))) from None

    def _http(self) -> httpx2.AsyncClient:
        """A client of its own for each request: nothing is left open when it ends, in whichever loop it ran."""
        import httpx2

        if self._tls is None:
            self._tls = httpx2.create_ssl_context()  # reading the certificates is what takes long
        timeout = httpx2.Timeout(self.endpoint.timeout_s, connect=self.endpoint.connect_timeout_s)
        return httpx2.AsyncClient(verify=self._tls, timeout=timeout)

    def _failure(self, error: Exception, sdk: Any, headers: Mapping[str, str]) -> Failure:
        import httpx2

        if isinstance(error, sdk.APITimeoutError | httpx2.TimeoutException):
            return Failure(self._told_of_silence(error), "TIMEOUT", request_id=request_id(headers))
        if isinstance(error, sdk.APIConnectionError | httpx2.TransportError):
            message = f"the connection to {self.base_url} failed: {describe(error)}"
            return Failure(message, "TRANSPORT", request_id=request_id(headers))
        if isinstance(error, sdk.APIStatusError) and error.status_code >= 300:
            return status_failure(error.status_code, error.body, error.response.headers, self._now())
        if isinstance(error, sdk.APIError):
            return stream_failure(error.body, headers, self._now())
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
            return Failure("the stream held an event that is no JSON", "INVALID_STREAM", request_id=request_id(headers))
        return Failure(describe(error), request_id=request_id(headers))

    def _told_of_silence(self, error: Exception) -> str:
        import httpx2

        is_connecting = isinstance(error, httpx2.ConnectTimeout) or isinstance(error.__cause__, httpx2.ConnectTimeout)
        limit_s = self.endpoint.connect_timeout_s if is_connecting else self.endpoint.timeout_s
        what = "could not be reached" if is_connecting else "sent nothing"
        return f"{self.base_url} {what} within {limit_s:g} s"

    def _without_secrets(self, failure: Failure) -> Failure:
        message = failure.message
        for secret in self.endpoint.secrets:  # some servers quote what they were sent
            message = message.replace(secret, "**********")
        return Failure(message, failure.code, failure.status, failure.retry_after_ms, failure.request_id)


def _check_is_stream(headers: Mapping[str, str]) -> None:
    kind = headers.get("content-type", "")
    if kind and not kind.startswith("text/event-stream"):
        invalid(f"the server answered with {kind} where a stream of events was due; is the address right?")


def invalid(message: str) -> NoReturn:
    raise LlmError(Failure(message, "INVALID_STREAM"))


def an_object(value: object, what: str) -> Mapping[str, Any]:
    """`value`, if it is a JSON object. Raises LlmError INVALID_STREAM."""
    if not isinstance(value, Mapping):
        invalid(f"{what} is no object; it is of type {type(value).__name__}")
    return value

"""Gives the HTTP requests of a tool the keys by which a vendor knows a repetition and does nothing twice."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias

from app.tools.types import ToolExecution

HEADER = "Idempotency-Key"

Same: TypeAlias = Literal["call", "arguments"]


class HttpClient(Protocol):
    """An async client as httpx and httpx2 have it."""

    @property
    def request(self) -> Callable[..., Awaitable[Any]]:
        """Called with method, URL and keywords, among them `headers`."""
        ...


def idempotent(execution: ToolExecution, client: HttpClient, *, same: Same = "call") -> IdempotentClient:
    """`client`, each request of which carries an `Idempotency-Key` of this call of a tool.

    The key is made of the call's, the method, the URL, and how many requests before it in this body had the same two:
    a body that makes the same requests again sends the same keys.

    `same` says what again means. With "call" it is this very call: repeated by a middleware, or by a retry in the body.
    With "arguments" it is any call of this tool in this session with equal arguments: also the one that a model makes
    under a new id when it was told after a crash that the outcome is unknown. Then, however, whoever wants to pay twice
    the same has to say so in an argument.
    """
    return IdempotentClient(client, execution.argument_key if same == "arguments" else execution.idempotency_key)


class IdempotentClient:
    """Made by `idempotent`. Used with `async with` it opens and closes the client that it was given."""

    def __init__(self, client: HttpClient, key: str) -> None:
        self._client = client
        self._key = key
        self._made: Counter[tuple[str, str]] = Counter()

    async def request(self, method: str, url: Any, *, headers: Any = None, **options: Any) -> Any:
        """The client's own `request`. A key among `headers` stays as it is."""
        given = dict(headers or {})
        if HEADER.lower() not in (str(name).lower() for name in given):
            given[HEADER] = self._next_key(method.upper(), str(url))
        return await self._client.request(method, url, headers=given, **options)

    async def get(self, url: Any, **options: Any) -> Any:
        return await self.request("GET", url, **options)

    async def post(self, url: Any, **options: Any) -> Any:
        return await self.request("POST", url, **options)

    async def put(self, url: Any, **options: Any) -> Any:
        return await self.request("PUT", url, **options)

    async def patch(self, url: Any, **options: Any) -> Any:
        return await self.request("PATCH", url, **options)

    async def delete(self, url: Any, **options: Any) -> Any:
        return await self.request("DELETE", url, **options)

    async def __aenter__(self) -> IdempotentClient:
        client: Any = self._client
        await client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        client: Any = self._client
        await client.__aexit__(kind, error, traceback)

    def _next_key(self, method: str, url: str) -> str:
        n = self._made[method, url]
        self._made[method, url] += 1
        return hashlib.sha256(f"{self._key}\0{method}\0{url}\0{n}".encode(errors="surrogatepass")).hexdigest()

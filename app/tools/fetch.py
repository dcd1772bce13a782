"""The tool that reads a page of the web: what a name stands for is looked up once, checked, and that is connected to.

By hand, for that reason; and through no proxy, which would look the name up again.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from asyncio import StreamReader
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, TypeAlias
from urllib.parse import quote, urljoin, urlsplit

from app.causes import error_text
from app.tools.body import run_in_thread
from app.tools.fetch_address import Allowed
from app.tools.fetch_response import MAX_HEADER_BYTES, body, decoded, head, readable
from app.tools.schema import tool
from app.tools.types import Tool, ToolError

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a host's name. Raises OSError."""

MAX_REDIRECTS = 5
CONNECT_S = 5.0

_UNSAFE = re.compile(r"[\x00-\x20\x7f-\x9f\\]")


@dataclass(frozen=True, slots=True)
class Page:
    """What was found at `url`, where the last redirect led. `truncated`: there is more than `text`."""

    url: str
    status: int
    content_type: str
    text: str
    truncated: bool


def fetch_tool(
    allow: Iterable[str] = (),
    denied_ports: Iterable[int] = (),
    *,
    timeout_s: float = 30.0,
    max_bytes: int = 262_144,
    resolve: Resolve | None = None,
) -> Tool:
    """The tool `fetch_url`. `allow` and `denied_ports` are those of Allowed. Does no I/O."""
    fetcher = _Fetcher(Allowed(allow, denied_ports), timeout_s, max_bytes, resolve or _resolve)
    return tool(fetcher.fetch_url, effects="read_only", parallel_safe=True)


class _Fetcher:
    def __init__(self, allowed: Allowed, timeout_s: float, max_bytes: int, resolve: Resolve) -> None:
        self._allowed = allowed
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._resolve = resolve

    async def fetch_url(self, url: Annotated[str, "an http or https address"]) -> Page:
        """Read a text (HTML, JSON, plain text and the like) from the public web, by GET, without cookies or passwords.

        Redirects are followed. A `status` of 400 or more is an answer, too. `truncated` means that there was more.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                for _ in range(MAX_REDIRECTS + 1):
                    page, location = await self._get(_Target.parse(url))
                    if location is None:
                        return page
                    url = urljoin(url, location)
        except TimeoutError as error:
            raise ToolError("FETCH_TIMEOUT", f"no whole answer within {self._timeout_s:g} s") from error
        raise ToolError("FETCH_FAILED", f"more than {MAX_REDIRECTS} redirects")

    async def _get(self, target: _Target) -> tuple[Page, str | None]:
        async with self._connected(target) as (reader, writer):
            try:
                writer.write(target.request())
                await writer.drain()
                status, headers = await head(reader)
                if status in (301, 302, 303, 307, 308) and "location" in headers:
                    return Page(target.url, status, "", "", truncated=False), headers["location"]
                content_type = readable(headers)
                content, truncated = await body(reader, headers, self._max_bytes)
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                raise ToolError("FETCH_FAILED", f"{target.host} gave no answer that can be read: {error}") from error
        return Page(target.url, status, content_type, decoded(content, content_type), truncated), None

    @asynccontextmanager
    async def _connected(self, target: _Target) -> AsyncGenerator[tuple[StreamReader, asyncio.StreamWriter], None]:
        try:
            addresses = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            raise ToolError("FETCH_FAILED", f"the name {target.host!r} cannot be resolved: {error}") from error
        self._allowed.check(target.host, addresses, target.port)
        tls = ssl.create_default_context() if target.is_tls else None
        name = target.host if target.is_tls else None
        failures: list[str] = []
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_S):
                    reader, writer = await asyncio.open_connection(
                        address, target.port, limit=MAX_HEADER_BYTES, ssl=tls, server_hostname=name
                    )
                break
            except OSError as error:  # a TimeoutError and every fault of TLS is one, too
                failures.append(f"{address}: {error_text(error)}")
        else:
            raise ToolError("FETCH_FAILED", f"cannot connect to {target.host}: {'; '.join(failures) or 'no address'}")
        try:
            yield reader, writer
        finally:
            writer.transport.abort()  # nothing is owed to the other side, and a goodbye might have to be waited for
            with suppress(OSError):
                await writer.wait_closed()


@dataclass(frozen=True, slots=True)
class _Target:
    """An address, taken apart."""

    url: str
    is_tls: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> _Target:
        """Raises ToolError `INVALID_URL`."""
        if _UNSAFE.search(url):
            raise ToolError("INVALID_URL", "the address holds a space, a backslash or a control character")
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").encode("idna").decode(), parts.port
        except ValueError as error:
            raise ToolError("INVALID_URL", f"the address cannot be read: {error}") from error
        if parts.scheme not in ("http", "https") or not host:
            raise ToolError("INVALID_URL", "the address is not of the form http://host/path or https://host/path")
        if parts.username is not None or parts.password is not None:
            raise ToolError("INVALID_URL", "the address holds a user or a password; give it without")
        is_tls = parts.scheme == "https"
        path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
        if parts.query:
            path += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~-._?")
        return cls(url, is_tls, host, port or (443 if is_tls else 80), path)

    def request(self) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.port != (443 if self.is_tls else 80):
            host += f":{self.port}"
        lines = (
            f"GET {self.path} HTTP/1.1",
            f"Host: {host}",
            "User-Agent: beforehand",
            "Accept: text/*, application/json, application/xml;q=0.9, */*;q=0.1",
            "Accept-Encoding: identity",
            "Connection: close",
        )
        return "\r\n".join((*lines, "", "")).encode("ascii")


async def _resolve(host: str, port: int) -> list[str]:
    # In a thread of its own: nobody has to wait for the event loop's pool when a name server does not answer.
    found = await run_in_thread("resolve", lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(str(address[0]) for *_, address in found))

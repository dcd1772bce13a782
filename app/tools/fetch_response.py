"""Reads an HTTP response no further than is wanted, and believes nothing that it says of itself."""

from __future__ import annotations

import codecs
import re
from asyncio import StreamReader
from collections.abc import Mapping
from contextlib import suppress

from app.tools.types import ToolError

MAX_HEADER_BYTES = 64 * 1024

_TEXT = re.compile(r"text/.*|application/(.*[+])?(json|xml|yaml|javascript|x-ndjson|x-javascript|x-yaml|toml|sql)")
_CHARSET = re.compile(
    r"utf-?(8|16|32)|us-?ascii|ascii|latin-?1|iso8859-\d+|cp\d+|koi8-[rut]|shift_jis|euc_\w+|gb\w*|big5\w*"
)


async def head(reader: StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers, by names in small letters; of two of a name the first counts. Raises ValueError, EOFError."""
    while True:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        found = re.fullmatch(r"HTTP/1\.[01] (\d{3})(?: .*)?", lines[0])
        if found is None:
            raise ValueError("it does not speak HTTP")
        status = int(found[1])
        if status >= 200:
            break
    headers: dict[str, str] = {}
    for line in filter(None, lines[1:]):
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise ValueError("a header that is none")
        headers.setdefault(name.lower(), value.strip())
    return status, headers


def readable(headers: Mapping[str, str]) -> str:
    """The content type. Raises ToolError `NOT_TEXT` for what is no text, or compressed though we did not ask for it."""
    content_type = headers.get("content-type", "text/plain")
    if not _TEXT.fullmatch(content_type.partition(";")[0].strip().lower()):
        raise ToolError("NOT_TEXT", f"it is {content_type:.100}, which is no text")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ToolError(
            "NOT_TEXT", f"it is compressed ({headers['content-encoding']:.100}), though that was not asked for"
        )
    return content_type


async def body(reader: StreamReader, headers: Mapping[str, str], limit: int) -> tuple[bytes, bool]:
    """The first `limit` bytes, and whether there is more. Raises EOFError if it ends too soon, ValueError."""
    encoding = headers.get("transfer-encoding", "").lower()
    if encoding == "chunked":
        return await _chunks(reader, limit)
    if encoding:
        raise ValueError(f"an unknown transfer encoding ({encoding:.100})")
    length = headers.get("content-length")
    if length is None:
        body = await _up_to(reader, limit + 1)
        return body[:limit], len(body) > limit
    if not re.fullmatch(r"\d{1,18}", length):
        raise ValueError("a content length that is none")
    return await reader.readexactly(min(int(length), limit)), int(length) > limit


async def _chunks(reader: StreamReader, limit: int) -> tuple[bytes, bool]:
    body = bytearray()
    while True:
        size = (await reader.readuntil(b"\r\n")).partition(b";")[0].strip()
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,16}", size):
            raise ValueError("a chunk without a size")
        left = int(size, 16)
        if left == 0:
            return bytes(body), False
        if len(body) + left > limit:
            return bytes(body) + await reader.readexactly(limit - len(body)), True
        body += await reader.readexactly(left)
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk without an end")


async def _up_to(reader: StreamReader, limit: int) -> bytes:
    body = bytearray()
    while len(body) < limit and (piece := await reader.read(limit - len(body))):
        body += piece
    return bytes(body)


def decoded(body: bytes, content_type: str) -> str:
    """In the encoding that the content type names, if it is a usual one, else UTF-8. What does not fit is U+FFFD."""
    named = re.search(r"charset=[\"']?([A-Za-z0-9_.:-]{1,40})", content_type, re.IGNORECASE)
    encoding = "utf-8"
    with suppress(LookupError):
        encoding = codecs.lookup(named[1]).name if named else encoding
    # Python has more encodings than the web: some take ages, some run over what was written.
    return body.decode(encoding if _CHARSET.fullmatch(encoding) else "utf-8", "replace")

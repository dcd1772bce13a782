"""fetch_url reaches public addresses only, whatever a name or a redirect leads to, and reads no more than it may."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from app.session.errors import ConfigurationError
from app.tools.fetch import fetch_tool
from app.tools.fetch_address import Allowed
from app.tools.types import ToolError
from tests.unit.tools.calls import call, failure, service

Answer = Callable[[str, asyncio.StreamWriter], Awaitable[None]]

PRIVATE = [
    *("127.0.0.1", "127.9.8.7", "0.0.0.0", "10.1.2.3", "172.31.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
    *("192.0.0.192", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
    *("::1", "::", "fe80::1", "fe80::1%lo", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "ff0e::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "2002:7f00:1::", "2002:a9fe:a9fe::1"),
    *("64:ff9b::127.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::1", "2001:0:1:2:3:4:80ff:fffe", "3fff::1", "100::1"),
]
PUBLIC = ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]


@pytest.mark.parametrize("address", PRIVATE)
def test_no_address_that_is_not_public_is_allowed_in_whatever_form(address: str) -> None:
    with pytest.raises(ToolError) as refused:
        Allowed().check("example.com", ["8.8.8.8", address], 443)
    assert refused.value.code == "ADDRESS_DENIED"


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    Allowed().check("example.com", [address], 443)


def test_settings_allow_hosts_and_networks_but_never_the_ports_of_the_runtime() -> None:
    allowed = Allowed(["Wiki.example", "10.1.0.0/16", "127.0.0.2"], denied_ports=[5432])
    allowed.check("wiki.example.", ["10.9.9.9"], 80)
    allowed.check("x", ["10.1.2.3", "::ffff:10.1.2.3", "127.0.0.2"], 80)
    for host, address, port in (
        ("x", "10.2.0.1", 80),
        ("other.wiki.example", "10.9.9.9", 80),
        ("wiki.example", "0.0.0.0", 80),
        ("wiki.example", "224.0.0.1", 80),
        ("wiki.example", "10.9.9.9", 5432),
        ("x", "8.8.8.8", 5432),
    ):
        with pytest.raises(ToolError):
            allowed.check(host, [address], port)


@pytest.mark.parametrize("entry", ["10.0.0.1/8", "10.0.0.0/99", "", "http://host"])
def test_what_is_neither_host_nor_network_is_refused(entry: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Allowed([entry])
    assert str(refused.value).startswith(f"tools.fetch.allow: {entry!r} is no host, address or network")


# ------------------------------------------------------------------------------------------------ the whole tool


class Names:
    """A resolver. Each name gives its addresses one after another, and the last of them for ever."""

    def __init__(self, **addresses: list[str]) -> None:
        self._addresses = addresses
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        given = self._addresses[host]
        return [given.pop(0) if len(given) > 1 else given[0]]


@asynccontextmanager
async def web(answer: Answer, address: str = "127.0.0.2") -> AsyncIterator[tuple[int, list[str]]]:
    """A server that hands the head of each request to `answer`; its port, and the request lines that came."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            asked.append(head)
            await answer(head, writer)
        except (ConnectionError, asyncio.IncompleteReadError):  # the tool has had enough, as it should
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, address, 0)
    try:
        yield server.sockets[0].getsockname()[1], asked
    finally:
        server.close()


def says(raw: bytes) -> Answer:
    async def answer(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return answer


def text(body: bytes, content_type: str = "text/plain", more: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n{more}\r\n".encode() + body


async def fetch(url: str, **options: object) -> tuple[object, tuple[str, str] | None]:
    """Value or failure of a call of the tool, through the tool service."""
    options.setdefault("allow", ["127.0.0.2"])
    options.setdefault("resolve", Names(a=["127.0.0.2"]))
    tools = service(fetch_tool(**options))  # type: ignore[arg-type]  # the options of one test
    result = await tools.execute(call("fetch_url", json.dumps({"url": url})))
    return result.value, None if result.failure is None else failure(result)


async def code(url: str, **options: object) -> str:
    _, failed = await fetch(url, **options)
    assert failed is not None
    return failed[0]


async def test_a_page_comes_with_its_status_and_its_name_in_the_request() -> None:
    async with web(says(text(b"h\xc3\xa9llo", "text/html; charset=utf-8"))) as (port, asked):
        value, _ = await fetch(f"http://a:{port}/x%20y?q=\u00e9#part")
    assert value == {
        "url": f"http://a:{port}/x%20y?q=\u00e9#part",
        "status": 200,
        "content_type": "text/html; charset=utf-8",
        "text": "h\u00e9llo",
        "truncated": False,
    }
    assert asked[0].splitlines()[:2] == ["GET /x%20y?q=%C3%A9 HTTP/1.1", f"Host: a:{port}"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"]
)
async def test_loopback_is_refused_however_it_is_written_and_nothing_is_sent(host: str) -> None:
    async with web(says(text(b"secret")), "127.0.0.1") as (port, asked):
        assert await code(f"http://{host}:{port}/", allow=[], resolve=None) == "ADDRESS_DENIED"
    assert asked == []


async def test_a_redirect_to_loopback_is_refused() -> None:
    async with web(says(text(b"secret")), "127.0.0.1") as (inner, asked):
        location = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{inner}/\r\n\r\n".encode()
        async with web(says(location)) as (port, _):
            resolve = Names(a=["127.0.0.2"], **{"127.0.0.1": ["127.0.0.1"]})
            assert await code(f"http://a:{port}/", resolve=resolve) == "ADDRESS_DENIED"
    assert asked == []


async def test_a_name_that_changes_is_looked_up_once_for_each_request_and_checked_each_time() -> None:
    async with web(says(b"HTTP/1.1 307 Again\r\nLocation: /next\r\n\r\n")) as (port, asked):
        resolve = Names(a=["127.0.0.2", "127.0.0.1"])
        assert await code(f"http://a:{port}/", resolve=resolve) == "ADDRESS_DENIED"
    assert resolve.asked == ["a", "a"]
    assert [head.split()[1] for head in asked] == ["/"]


async def test_redirects_come_to_an_end() -> None:
    async with web(says(b"HTTP/1.1 301 Moved\r\nLocation: /\r\n\r\n")) as (port, asked):
        assert await code(f"http://a:{port}/") == "FETCH_FAILED"
    assert len(asked) == 6


async def test_the_runtimes_own_ports_are_refused_also_on_a_redirect() -> None:
    async with web(says(b"HTTP/1.1 302 Found\r\nLocation: http://a:5432/\r\n\r\n")) as (port, _):
        assert await code(f"http://a:{port}/", denied_ports=[5432]) == "ADDRESS_DENIED"


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://a/", "file:///etc/passwd", "gopher://a/", "//a/", "a", "http://", "http:///x", "http://user:pw@a/"),
        *("http://a/ b", "http://a/\r\nHost: b", "http://a:99999/", "http://[::1/", "http://a\\@b/", "javascript:1"),
    ],
)
async def test_what_is_no_plain_web_address_is_refused(url: str) -> None:
    assert await code(url) == "INVALID_URL"


async def test_an_endless_body_is_cut() -> None:
    async def endless(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(text(b""))
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    async with web(endless) as (port, _):
        value, _ = await fetch(f"http://a:{port}/", max_bytes=1000)
    assert isinstance(value, dict)
    assert (value["text"], value["truncated"]) == ("x" * 1000, True)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", text(b"some")], ids=["silent", "in-head", "in-body"])
async def test_a_slow_answer_is_given_up(start: bytes) -> None:
    released = asyncio.Event()

    async def slow(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        await released.wait()

    async with web(slow) as (port, _):
        assert await code(f"http://a:{port}/", timeout_s=0.2) == "FETCH_TIMEOUT"
        released.set()


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (text(b"abc", more="Content-Length: 3\r\n"), "abc"),
        (text(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", more="Transfer-Encoding: chunked\r\n"), "abcde"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + text(b"abc"), "abc"),
        (b"HTTP/1.1 404 Not Found\r\n\r\nno", "no"),
        (text("\u00e9".encode("latin-1"), "text/plain; charset=iso-8859-1"), "\u00e9"),
        (text(b"a\xffb", "application/problem+json"), "a\ufffdb"),
        (text(b"abc", "text/plain; charset=punycode"), "abc"),
        (text(b"abc", "text/plain; charset=no-such"), "abc"),
    ],
)
async def test_each_kind_of_answer_is_read(raw: bytes, told: str) -> None:
    async with web(says(raw)) as (port, _):
        value, failed = await fetch(f"http://a:{port}/")
    assert failed is None
    assert isinstance(value, dict)
    assert value["text"] == told


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (text(b"x", "image/png"), "NOT_TEXT"),
        (text(b"x", "application/octet-stream"), "NOT_TEXT"),
        (text(b"x", more="Content-Encoding: gzip\r\n"), "NOT_TEXT"),
        (text(b"ab", more="Content-Length: 3\r\n"), "FETCH_FAILED"),
        (text(b"x", more="Content-Length: -3\r\n"), "FETCH_FAILED"),
        (text(b"zz\r\n", more="Transfer-Encoding: chunked\r\n"), "FETCH_FAILED"),
        (text(b"5\r\nabcdefg", more="Transfer-Encoding: chunked\r\n"), "FETCH_FAILED"),
        (text(b"x", more="Transfer-Encoding: gzip\r\n"), "FETCH_FAILED"),
        (text(b"x", more="no header\r\n"), "FETCH_FAILED"),
        (text(b"x", more=f"X: {'x' * 100_000}\r\n"), "FETCH_FAILED"),
        (b"220 mail.example.org ESMTP\r\n\r\n", "FETCH_FAILED"),
        (b"", "FETCH_FAILED"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_an_error(raw: bytes, expected: str) -> None:
    async with web(says(raw)) as (port, _):
        assert await code(f"http://a:{port}/") == expected


async def test_a_chunk_over_the_limit_is_cut_there() -> None:
    async with web(says(text(b"ffffffffffffff\r\nabcdef", more="Transfer-Encoding: chunked\r\n"))) as (port, _):
        value, _ = await fetch(f"http://a:{port}/", max_bytes=4)
    assert isinstance(value, dict)
    assert (value["text"], value["truncated"]) == ("abcd", True)


async def test_nobody_there_and_no_such_name_are_errors() -> None:
    async with web(says(b"")) as (port, _):
        pass
    assert await code(f"http://a:{port}/") == "FETCH_FAILED"

    async def unknown(host: str, port: int) -> list[str]:
        raise OSError("Name or service not known")

    _, failed = await fetch("http://b/", resolve=unknown)
    assert failed == ("FETCH_FAILED", "the name 'b' cannot be resolved: Name or service not known")


async def test_https_asks_for_the_name_and_refuses_a_certificate_that_nobody_vouches_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[object] = []
    real = asyncio.open_connection

    async def watched(*args: object, **options: object) -> object:
        names.append((args[0], options["server_hostname"], isinstance(options["ssl"], ssl.SSLContext)))
        return await real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "open_connection", watched)
    async with web(says(text(b"no TLS here"))) as (port, _):
        assert await code(f"https://a:{port}/") == "FETCH_FAILED"
    assert names == [("127.0.0.2", "a", True)]

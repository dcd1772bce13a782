"""A vendor's server on loopback: refuses what vendors refuse, in their shapes, and streams what a test wants said.

Answers are given in the order of the requests. What one holds: bytes to send, a gate to wait at, or how it ends badly.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from tests.support.vendor_rules import refusal, sign

Vendor: TypeAlias = Literal["openai", "anthropic"]
Piece: TypeAlias = bytes | asyncio.Event | Literal["cut", "hang"]
"""Sent; waited for; or the connection is reset, or held open in silence until the client goes."""

PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
KEY = "sk-canary-0123456789"
REQUEST_ID = "req_0011"


@dataclass(frozen=True, slots=True)
class Answer:
    """`pieces` of the body, sent as chunks; `headers` go over those of a stream."""

    pieces: Sequence[Piece]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def bytewise(answer: Answer) -> Answer:
    """The same answer, each byte of it by itself."""
    pieces: list[Piece] = []
    for piece in answer.pieces:
        pieces += [bytes([byte]) for byte in piece] if isinstance(piece, bytes) else [piece]
    return Answer(pieces, answer.status, answer.headers)


def error(status: int, body: object, **headers: str) -> Answer:
    """A refusal; `retry_after="3"` is the header Retry-After."""
    text = body if isinstance(body, str) else json.dumps(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer([text.encode()], status, {"content-type": "application/json", **named})


def openai_error(message: str, kind: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def anthropic_error(message: str, kind: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": REQUEST_ID}


# ------------------------------------------------------------------------------------------------ streams


def data(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def delta(reason: str | None = None, **fields: Any) -> bytes:
    """An event of OpenAI's."""
    choice = {"index": 0, "delta": fields, "finish_reason": reason}
    return data({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]})


def openai_stream(
    text: str = "",
    *calls: tuple[str, str, str],
    reasoning: str = "",
    reason: str | None = None,
    usage: Mapping[str, Any] | None = None,
) -> list[Piece]:
    """An answer in pieces of four characters; `calls` are (id, name, arguments), and their pieces take turns."""
    events = [delta(role="assistant", content="")]
    events += [delta(reasoning_content=piece) for piece in _pieces(reasoning)]
    events += [delta(content=piece) for piece in _pieces(text)]
    for place, (id, name, _) in enumerate(calls):
        function = {"name": name, "arguments": ""}
        events.append(delta(tool_calls=[{"index": place, "id": id, "type": "function", "function": function}]))
    events += [
        delta(tool_calls=[{"index": place, "function": {"arguments": piece}}]) for place, piece in _in_turn(calls)
    ]
    events.append(delta(reason or ("tool_calls" if calls else "stop")))
    if usage is not None:
        events.append(data({"choices": [], "usage": usage}))
    return [*events, DONE]


def event(kind: str, **fields: Any) -> bytes:
    """An event of Anthropic's."""
    return f"event: {kind}\n".encode() + data({"type": kind, **fields})


def block(index: int, start: Mapping[str, Any], *deltas: Mapping[str, Any]) -> list[bytes]:
    return [
        event("content_block_start", index=index, content_block=start),
        *(event("content_block_delta", index=index, delta=each) for each in deltas),
        event("content_block_stop", index=index),
    ]


def anthropic_stream(
    text: str = "",
    *calls: tuple[str, str, str],
    reasoning: str = "",
    redacted: str = "",
    reason: str | None = None,
) -> list[Piece]:
    """The same, as this vendor says it: the thinking first, signed."""
    usage = {"input_tokens": 20, "cache_read_input_tokens": 12, "output_tokens": 1}
    blocks: list[tuple[Mapping[str, Any], list[Mapping[str, Any]]]] = []
    if reasoning:
        deltas: list[Mapping[str, Any]] = [
            {"type": "thinking_delta", "thinking": piece} for piece in _pieces(reasoning)
        ]
        deltas.append({"type": "signature_delta", "signature": sign(reasoning)})
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
    if redacted:
        blocks.append(({"type": "redacted_thinking", "data": redacted}, []))
    if text:
        blocks.append(
            ({"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in _pieces(text)])
        )
    for id, name, arguments in calls:
        pieces: list[Mapping[str, Any]] = [
            {"type": "input_json_delta", "partial_json": piece} for piece in ["", *_pieces(arguments)]
        ]
        blocks.append(({"type": "tool_use", "id": id, "name": name, "input": {}}, pieces))
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": usage}
    events = [event("message_start", message=message), event("ping")]
    for index, (start, deltas) in enumerate(blocks):
        events += block(index, start, *deltas)
    stop = {"stop_reason": reason or ("tool_use" if calls else "end_turn"), "stop_sequence": None}
    events.append(event("message_delta", delta=stop, usage={"output_tokens": 9}))
    return [*events, event("message_stop")]


def stream(vendor: Vendor, text: str = "", *calls: tuple[str, str, str], **more: Any) -> Answer:
    made = openai_stream(text, *calls, **more) if vendor == "openai" else anthropic_stream(text, *calls, **more)
    return Answer(made)


def _pieces(text: str) -> list[str]:
    return [text[start : start + 4] for start in range(0, len(text), 4)]


def _in_turn(calls: Sequence[tuple[str, str, str]]) -> list[tuple[int, str]]:
    columns = [[(place, piece) for piece in _pieces(call[2])] for place, call in enumerate(calls)]
    longest = max(map(len, columns), default=0)
    return [column[row] for row in range(longest) for column in columns if row < len(column)]


# ------------------------------------------------------------------------------------------------ the server


class VendorServer:
    """`async with VendorServer("openai", answer, ...) as server`: `url` is what a base_url is set to.

    `bodies` and `heads` are of the requests that came. `asked` is set at each; `hung_up` once a client has gone from an
    answer that hangs. Without answers left a request is refused with status 500.
    """

    def __init__(self, vendor: Vendor, *answers: Answer, key: str | None = KEY) -> None:
        self.vendor = vendor
        self.answers = list(answers)
        self.key = key
        self.bodies: list[Any] = []
        self.heads: list[dict[str, str]] = []
        self.asked = asyncio.Event()
        self.hung_up = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}" + ("/v1" if self.vendor == "openai" else "")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head, body = await _read_request(reader)
                await self._answer(self._decide(head, body), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):  # the client has gone
            self.hung_up.set()
        except asyncio.CancelledError:  # the server closes; the loop would report a task that ends cancelled
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    def _decide(self, head: dict[str, str], body: bytes) -> Answer:
        self.heads.append(head)
        if head["path"] != PATHS[self.vendor]:
            return error(404, "404 page not found")
        if self.key is not None and self.key not in (head.get("x-api-key"), head.get("authorization", "")[7:]):
            sent = head.get("x-api-key") or head.get("authorization", "")
            return self._refuse(401, f"Incorrect API key provided: {sent}", "invalid_api_key")
        try:
            decoded = json.loads(body.decode())
        except ValueError:
            return self._refuse(400, "We could not parse the JSON body of your request.")
        self.bodies.append(decoded)
        self.asked.set()
        if (told := refusal(self.vendor, decoded)) is not None:
            return self._refuse(400, told)
        return self.answers.pop(0) if self.answers else self._refuse(500, "no answer is left")

    def _refuse(self, status: int, message: str, code: str | None = None) -> Answer:
        if self.vendor == "openai":
            return error(status, openai_error(message, "invalid_request_error", code), x_request_id=REQUEST_ID)
        kind = {401: "authentication_error", 500: "api_error"}.get(status, "invalid_request_error")
        return error(status, anthropic_error(message, kind), request_id=REQUEST_ID)

    async def _answer(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = "x-request-id" if self.vendor == "openai" else "request-id"
        headers = {"content-type": "text/event-stream", own: REQUEST_ID, **answer.headers}
        writer.write(f"HTTP/1.1 {answer.status} X\r\ntransfer-encoding: chunked\r\n{_lines(headers)}\r\n".encode())
        for piece in answer.pieces:
            if isinstance(piece, asyncio.Event):
                await piece.wait()
            elif piece == "cut":
                writer.transport.abort()
                raise ConnectionResetError
            elif piece == "hang":
                await writer.drain()
                await reader.readexactly(1)
            elif piece:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def _lines(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


async def _read_request(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    head = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    head["path"] = first.split(" ")[1]
    return head, await reader.readexactly(int(head.get("content-length", "0")))


def said(bodies: Iterable[Any]) -> str:
    """Everything that was sent, as one text to look for something in."""
    return json.dumps(list(bodies))

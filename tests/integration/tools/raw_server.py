"""A server that breaks the rules of MCP, by hand: `raw_server.py WAY`, one of the ways below. Standard library only."""

import json
import os
import signal
import sys
import time
from typing import Any

way = sys.argv[1]
OBJECT = {"type": "object"}


def say(message: Any) -> None:
    print(message if isinstance(message, str) else json.dumps(message), flush=True)


def answer(asked: dict[str, Any], result: Any) -> None:
    say({"jsonrpc": "2.0", "id": asked["id"], "result": result})


def tools() -> list[Any]:
    if way == "bad-schemas":
        bad = [OBJECT | {"properties": {"a": {"minimum": "x"}}}, OBJECT | {"properties": {"a": {"type": "thing"}}}]
        far = OBJECT | {"properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
        given = [*enumerate(bad), ("far", far), ("deep", OBJECT), ("deep", OBJECT)]
        return [{"name": f"t{name}", "inputSchema": schema} for name, schema in given]
    return [{"name": name, "inputSchema": OBJECT} for name in ("call", "other")]


def listed(asked: dict[str, Any]) -> None:
    if way == "endless-pages":
        answer(asked, {"tools": [], "nextCursor": "on"})
    elif way == "list-of-rubbish":
        answer(asked, {"tools": "rubbish"})
    else:
        answer(asked, {"tools": tools()})


def called(asked: dict[str, Any]) -> None:
    if way == "garbage":
        say("what is this\n\n{}\n[]\nnull")
        os.write(1, b"\xff\xfe\x00 not even text\n")
        answer({"id": 9999}, {"content": []})
        answer(asked, {"content": [{"type": "text", "text": "ok"}]})
    elif way == "rubbish-result":
        answer(asked, {"content": [{"type": "smell"}]})
    elif way == "refusing":
        say({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32603, "message": "not for you, sesame-open"}})
    elif way == "hundred-megabytes":
        os.write(1, b'{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "' % asked["id"])
        for _ in range(100):
            sys.stdout.write("x" * 1024 * 1024)
        say('"}]}}')
    elif way == "half-a-line":
        os.write(1, b'{"jsonrpc": "2.0", ')
        os._exit(1)
    elif way == "deaf":
        signal.pause()  # it reads no more, and answers nothing
    elif way == "changing":
        say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        answer(asked, {"content": [{"type": "text", "text": "ok"}]})


if way == "complaining":
    print("cannot find my configuration, sesame-open", file=sys.stderr, flush=True)
    sys.exit(7)
if way == "undying":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    request = json.loads(line)
    method = request.get("method")
    if method == "initialize" and way != "silent":
        info = {"name": "raw", "version": "1"}
        answer(request, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        listed(request)
    elif method == "tools/call":
        called(request)
    elif "id" in request and method != "initialize":
        say({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no such method"}})
while way == "undying":
    time.sleep(1)

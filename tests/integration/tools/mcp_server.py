"""A server made with the package's own server side: `mcp_server.py [PORT [json]]`, on stdio, or over HTTP on a port."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("things")
note = Path.write_text
IDEMPOTENT = ToolAnnotations(idempotentHint=True, destructiveHint=False)


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=IDEMPOTENT, structured_output=False)
def write(path: str, text: str) -> str:
    """Write a file."""
    Path(path).write_text(text)
    return "written"


@server.tool(structured_output=False)
async def write_and_hang(path: str) -> str:
    """Take effect, and never come back."""
    note(Path(path), str(os.getpid()))
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note(Path(path), "told to stop")
        raise
    return "never"


@server.tool(name="die.now")
def die(code: int) -> str:
    """End the server."""
    os._exit(code)


@server.tool(structured_output=False)
def fail(path: str) -> str:
    """Fail."""
    return Path(path).read_text()


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """A text and an image."""
    return ["a picture", Image(data=b"x" * 100_000, format="png")]


@server.tool(structured_output=False)
def big(size: int) -> str:
    """A long text."""
    return "x" * size


@server.tool(structured_output=False)
async def keys(ctx: Context) -> str:
    """What the request carried."""
    meta: Any = ctx.request_context.meta or {}
    return f"{meta['beforehand/callId']} {meta['beforehand/idempotencyKey']}"


@server.tool()
def environment() -> list[str]:
    """The variables there are."""
    return sorted(os.environ)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]), json_response="json" in sys.argv)
    server.run("stdio")

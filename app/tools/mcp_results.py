"""What an MCP server says, made what a log can keep: effects of its hints, values of its results, names for a model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from app.tools.types import Effects, ToolError

MAX_NAME = 64

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")


def tool_name(server: str, tool: str) -> str:
    """`server__tool`; where that is no name for a tool, what is left of it and a digest of the tool's own name."""
    name = f"{server}__{tool}"
    if len(name) <= MAX_NAME and not _NO_NAME.search(name):
        return name
    digest = hashlib.sha256(tool.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{_NO_NAME.sub('_', name)[: MAX_NAME - 9]}_{digest}"


def effects_of(annotations: Mapping[str, Any] | None) -> Effects:
    """What the hints say, taking the graver one where they differ; without hints a call may do anything."""
    hints = annotations or {}
    if hints.get("readOnlyHint") is True:
        return "read_only"
    if hints.get("idempotentHint") is True and hints.get("destructiveHint") is not True:
        return "idempotent"
    return "side_effect"


def value_of(result: Mapping[str, Any]) -> Any:
    """The value of a `tools/call` result as the protocol writes it. Raises ToolError if the tool says that it failed.

    Structured content is the value; else the text, if there is nothing but text; else the list of blocks. Images,
    audio and binary resources are told of by type and size, their bytes are left out.
    """
    blocks = [_block(block) for block in result["content"]]
    text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
    others = [block for block in blocks if block["type"] != "text"]
    if result.get("isError"):
        raise ToolError("TOOL_FAILED", text or "the tool failed and did not say why")
    if "structuredContent" in result:
        structured = result["structuredContent"]
        return {"structured": structured, "content": others} if others else structured
    return blocks if others else text


def _block(block: Mapping[str, Any]) -> dict[str, Any]:
    kind = block["type"]
    if kind == "text":
        return {"type": "text", "text": block["text"]}
    if kind == "resource":
        resource = block["resource"]
        told = {"type": "resource", "uri": resource["uri"], "mimeType": resource.get("mimeType")}
        return told | ({"text": resource["text"]} if "text" in resource else {"bytes": _size(resource["blob"])})
    if kind == "resource_link":
        return {"type": kind} | {key: block.get(key) for key in ("uri", "name", "description", "mimeType", "size")}
    return {"type": kind, "mimeType": block.get("mimeType"), "bytes": _size(block.get("data", ""))}


def _size(base64: str) -> int:
    return len(base64.rstrip("=")) * 3 // 4

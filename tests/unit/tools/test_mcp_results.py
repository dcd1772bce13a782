"""What MCP servers say becomes effects, names and values that a log can keep and a model can use."""

import base64
import re
from typing import Any

import pytest

from app.tools.mcp_results import effects_of, tool_name, value_of
from app.tools.types import ToolError


@pytest.mark.parametrize(
    ("hints", "effects"),
    [
        (None, "side_effect"),
        ({}, "side_effect"),
        ({"readOnlyHint": True}, "read_only"),
        ({"readOnlyHint": True, "destructiveHint": True}, "read_only"),
        ({"idempotentHint": True}, "idempotent"),
        ({"idempotentHint": True, "destructiveHint": False}, "idempotent"),
        ({"idempotentHint": True, "destructiveHint": True}, "side_effect"),
        ({"destructiveHint": False}, "side_effect"),
        ({"readOnlyHint": False, "idempotentHint": False}, "side_effect"),
        ({"readOnlyHint": "yes"}, "side_effect"),
    ],
)
def test_hints_become_effects(hints: Any, effects: str) -> None:
    assert effects_of(hints) == effects


def test_a_name_that_fits_is_kept_and_any_other_is_made_one_that_stays_its_own() -> None:
    assert tool_name("files", "read_file") == "files__read_file"
    odd = [tool_name("files", name) for name in ("fs.read", "fs/read", "l" * 80, "l" * 79 + "m", "\u00e9", "")]
    assert odd[0].startswith("files__fs_read_")
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in odd)
    assert len(set(odd)) == len(odd)
    assert odd == [tool_name("files", name) for name in ("fs.read", "fs/read", "l" * 80, "l" * 79 + "m", "\u00e9", "")]


TEXT = {"type": "text", "text": "seen"}
DATA = base64.b64encode(b"x" * 1000).decode()


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ({"content": []}, ""),
        ({"content": [TEXT, TEXT]}, "seen\nseen"),
        ({"content": [TEXT], "structuredContent": {"a": None}}, {"a": None}),
        ({"content": [], "structuredContent": [1]}, [1]),
        (
            {"content": [TEXT, {"type": "image", "mimeType": "image/png", "data": DATA}]},
            [TEXT, {"type": "image", "mimeType": "image/png", "bytes": 1000}],
        ),
        (
            {"content": [{"type": "audio", "mimeType": "audio/wav", "data": DATA}], "structuredContent": {"a": 1}},
            {"structured": {"a": 1}, "content": [{"type": "audio", "mimeType": "audio/wav", "bytes": 1000}]},
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "file:///a", "mimeType": "a/b", "blob": DATA}}]},
            [{"type": "resource", "uri": "file:///a", "mimeType": "a/b", "bytes": 1000}],
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "t"}}]},
            [{"type": "resource", "uri": "file:///a", "mimeType": None, "text": "t"}],
        ),
        (
            {"content": [{"type": "resource_link", "uri": "file:///a", "name": "a", "size": 7}]},
            [{"type": "resource_link", "uri": "file:///a", "name": "a"} | {"size": 7}
             | {"description": None, "mimeType": None}],
        ),
    ],
)  # fmt: skip
def test_a_result_becomes_a_value_without_the_bytes_of_what_is_no_text(result: Any, value: Any) -> None:
    assert value_of(result) == value


@pytest.mark.parametrize(("content", "message"), [([TEXT], "seen"), ([], "the tool failed and did not say why")])
def test_a_result_that_says_it_is_an_error_is_one(content: Any, message: str) -> None:
    with pytest.raises(ToolError) as failed:
        value_of({"content": content, "isError": True})
    assert (failed.value.code, failed.value.message) == ("TOOL_FAILED", message)

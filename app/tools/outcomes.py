"""What a model is told when a call has no value: every code of ours and its text, in one place.

Nothing that differs between two runs of the same case may stand in a text.
"""

import json
from bisect import bisect_right

from app.causes import error_text
from app.tools.types import ABORTED_BEFORE_DISPATCH, InvalidArguments, Tool, ToolError, ToolFailure, ToolResult

__all__ = ["ABORTED_BEFORE_DISPATCH"]

MAX_CODE_CHARACTERS = 200


def unknown_tool(name: str) -> ToolResult:
    return ToolResult.error("UNKNOWN_TOOL", f"there is no tool named {name!r}")


def invalid_arguments(error: BaseException) -> ToolResult:
    problems = error_text(error)
    if not isinstance(error, InvalidArguments):  # a validator of a parameter's type failed in its own way
        problems = f"{type(error).__name__}: {problems}"
    return ToolResult.error("INVALID_ARGUMENTS", f"the arguments do not fit: {problems}")


def not_json(error: Exception) -> ToolResult:
    return ToolResult.error("INVALID_ARGUMENTS", f"the arguments cannot be read as JSON: {error_text(error)}")


def denied(reason: str) -> ToolResult:
    return ToolResult.error("DENIED", str.__str__(reason) or "the call was denied, no reason was given")


def policy_failed(name: str, problem: str) -> ToolResult:
    return ToolResult.error("POLICY_FAILED", f"{name!r} failed, so the tool was not run: {problem}")


def middleware_failed(problem: str, tool: Tool, *, has_run: bool) -> ToolResult:
    after = "" if not has_run or tool.effects == "read_only" else "; the tool had run, it may have taken effect"
    return ToolResult.error("MIDDLEWARE_FAILED", problem + after)


def checkpoint_failed(error: BaseException) -> ToolResult:
    return ToolResult.error("CHECKPOINT_FAILED", error_text(error))


def aborted(tool: Tool) -> ToolResult:
    after = "" if tool.effects == "read_only" else " after it had started; it may have taken effect"
    return ToolResult.error("ABORTED", "tool call aborted" + after)


def timed_out(tool: Tool, timeout_s: float) -> ToolResult:
    after = "" if tool.effects == "read_only" else "; it may have taken effect"
    return ToolResult.error("TOOL_TIMEOUT", f"tool call timed out after {timeout_s:g} s{after}")


def tool_failed(error: BaseException) -> ToolResult:
    """With the tool's own code, if it raised one that can be used as a code."""
    code = str.__str__(error.code) if isinstance(error, ToolError) and _is_code(error.code) else "TOOL_FAILED"
    return ToolResult.error(code, error_text(error))


def invalid_output(problem: str, *, has_run: bool) -> ToolResult:
    return ToolResult.error("INVALID_TOOL_OUTPUT", f"{_unrecordable(has_run)}: {problem}")


def too_large(size: int, limit: int, *, has_run: bool) -> ToolResult:
    return ToolResult.error("RESULT_TOO_LARGE", f"{_unrecordable(has_run)}: it has {size} bytes, the limit is {limit}")


def _unrecordable(has_run: bool) -> str:
    if has_run:
        return "the tool ran, but its result cannot be recorded"
    return "the tool did not run, and the result given in its place cannot be recorded"


def is_failure(failure: object) -> bool:
    """Whether it could be recorded, whoever made it."""
    return isinstance(failure, ToolFailure) and _is_code(failure.code) and isinstance(failure.message, str)


def _is_code(code: object) -> bool:
    return isinstance(code, str) and 0 < len(code) <= MAX_CODE_CHARACTERS


def fitted(result: ToolResult, limit: int) -> ToolResult:
    """The result with its message, if it has one, cut to `limit` bytes of stored text, saying so."""
    failure = result.failure
    if failure is None or len(failure.message) * 12 < limit or (size := _stored_bytes(failure.message)) <= limit:
        return result
    notice = f" [cut here: the message has {size} bytes, the limit is {limit}]"
    room = limit - len(notice)
    kept = bisect_right(range(len(failure.message)), room, key=lambda n: _stored_bytes(failure.message[: n + 1]))
    return ToolResult(failure=ToolFailure(failure.code, failure.message[:kept] + notice))


def _stored_bytes(text: str) -> int:
    """The length of its JSON text."""
    return len(json.dumps(text))

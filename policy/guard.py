"""The shipped guard: an effect that may have happened already is not caused again without anybody having looked."""

from __future__ import annotations

from app.tools.types import ToolExecution

REPEAT_UNKNOWN = "repeat_unknown"
"""The name under which it stands in the list of guards, and the setting that asks for it."""


def refuse_repeat_of_unknown(execution: ToolExecution) -> str | None:
    """Why a call is refused that equals an earlier one of this session whose effect is not known, or None.

    Equal is what has the same `argument_key`. A read_only or idempotent tool may be called again, whatever became of
    the earlier call; what counts is what it declares now, since it is the new call that must do no harm.
    """
    if not execution.earlier_unknown or execution.effects != "side_effect":
        return None
    call_id, code = execution.earlier_unknown[-1]
    return (
        f"an equal call, {call_id}, was started before and may have taken effect ({code}), so this one was not run. "
        "Verify the state by other means, and ask the user what to do if the effect is missing"
    )

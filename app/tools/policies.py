"""Asks whether a call may run: every policy in order, then every guard; only a clear yes of all of them is one."""

from collections.abc import Sequence
from functools import partial

from app.causes import error_text
from app.middleware import Named
from app.tools import outcomes
from app.tools.foreign import Raised, answer_at_once, answer_of, log_raised, unawaited
from app.tools.types import Allow, Deny, Guard, ToolExecution, ToolPolicy, ToolResult


async def ask(
    policies: Sequence[Named[ToolPolicy]], guards: Sequence[Named[Guard]], execution: ToolExecution
) -> ToolResult | None:
    """The first refusal, or None. A policy is awaited to its end even if the signal is set meanwhile."""
    for policy in policies:
        answer = await answer_of(partial(policy.call, execution))
        if isinstance(answer, Raised):
            log_raised(execution, answer.error)
            return outcomes.policy_failed(policy.name, error_text(answer.error))
        if isinstance(answer, Deny) and isinstance(answer.reason, str):
            return outcomes.denied(answer.reason)
        if not isinstance(answer, Allow):
            return outcomes.policy_failed(policy.name, f"it answered {type(answer).__name__}, not Allow or Deny")
        if execution.signal.is_cancelled:
            return outcomes.ABORTED_BEFORE_DISPATCH
    for guard in guards:
        reason = unawaited(answer_at_once(partial(guard.call, execution)))
        if isinstance(reason, Raised):
            log_raised(execution, reason.error)
            return outcomes.policy_failed(guard.name, error_text(reason.error))
        if isinstance(reason, str):
            return outcomes.denied(reason)
        if reason is not None:
            return outcomes.policy_failed(guard.name, f"it answered {type(reason).__name__}, not a reason or None")
    return outcomes.ABORTED_BEFORE_DISPATCH if execution.signal.is_cancelled else None

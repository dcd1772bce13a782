"""The one way a tool is run: resolve, validate, policies, guards, middleware, body, output; always to a result."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from app.causes import error_text
from app.middleware import CHECKPOINT, MiddlewareFailed, Named, compose
from app.session.call_keys import parse_arguments
from app.session.errors import LOST, AbortedBeforeDispatch, LimitExceeded, PersistenceError
from app.tools import outcomes
from app.tools.body import TimedOut, run_body
from app.tools.foreign import Raised, answer_at_once, answer_of, log_raised, unawaited
from app.tools.nested import NestedCalls
from app.tools.output import MAX_RESULT_BYTES, checked, recordable
from app.tools.policies import ask
from app.tools.tool_set import ToolSet
from app.tools.types import (
    Guard,
    Tool,
    ToolExecution,
    ToolFailure,
    ToolMiddleware,
    ToolPolicy,
    ToolResult,
)


class ToolService:
    """Runs calls. What tools, policies, guards, middleware and checkpoints do wrong becomes a result, no exception.

    `policies` and `guards` are asked in order; the first of `middleware` is outermost. `default_timeout_s` holds for
    bodies whose tool has no timeout of its own. A value's stored text has at most `max_result_bytes`, and so has a
    message.
    """

    def __init__(
        self,
        tool_set: ToolSet,
        policies: Sequence[Named[ToolPolicy]] = (),
        guards: Sequence[Named[Guard]] = (),
        middleware: Sequence[Named[ToolMiddleware]] = (),
        *,
        default_timeout_s: float | None = None,
        max_result_bytes: int = MAX_RESULT_BYTES,
    ) -> None:
        self.tool_set = tool_set
        self.policies = tuple(policies)
        self.guards = tuple(guards)
        self.middleware = tuple(middleware)
        self._default_timeout_s = default_timeout_s
        self._max_result_bytes = max_result_bytes
        self._may_be_changed = any(entry.name != CHECKPOINT for entry in middleware)  # a value, after it was checked
        self._through_middleware = compose(self.middleware, self._run_body)

    def is_parallel_safe(self, name: str, raw_arguments: str) -> bool:
        """Whether the tool says exactly True for these arguments. Anything unknown, unreadable or failing is a no."""
        tool = self.tool_set.get(name)
        if tool is None:
            return False
        said = answer_at_once(lambda: tool.is_parallel_safe(parse_arguments(raw_arguments)))
        return unawaited(said) is True

    async def execute(self, execution: ToolExecution) -> ToolResult:
        """Run one call from its name to its result."""
        refusal = await self.admit(execution)
        return refusal if refusal is not None else await self.dispatch(execution)

    async def admit(self, execution: ToolExecution) -> ToolResult | None:
        """Resolve, parse, validate, ask policies and guards. Returns the refusal, or None: the call may be dispatched.

        A policy is awaited to its end even if the signal is set meanwhile.
        """
        refusal = await self._admit(execution)
        return None if refusal is None else outcomes.fitted(refusal, self._max_result_bytes)

    async def dispatch(self, execution: ToolExecution) -> ToolResult:
        """Run an admitted call through the middleware to its body."""
        admission = execution.admission
        if not isinstance(admission, _Admission):
            raise RuntimeError(f"call {execution.call_id!r} was not admitted")
        answer = await answer_of(partial(self._through_middleware, execution))
        if isinstance(answer, Raised):
            result = _fault(execution, admission, answer.error)
        elif not any(answer is result for result in admission.results):
            result = self._substitute(execution, admission, answer)
        elif answer.failure is None and self._may_be_changed:
            result = recordable(answer.value, self._max_result_bytes, has_run=True)
        else:
            return answer
        return outcomes.fitted(result, self._max_result_bytes)

    # ------------------------------------------------------------------------------------ before the body

    async def _admit(self, execution: ToolExecution) -> ToolResult | None:
        if execution.signal.is_cancelled:
            return outcomes.ABORTED_BEFORE_DISPATCH
        tool = self.tool_set.get(execution.name)
        if tool is None:
            return outcomes.unknown_tool(execution.name)
        try:
            # Twice: policies and the body see one value, which they might change, and what the body is called with
            # comes from another.
            execution.arguments, to_validate = (parse_arguments(execution.raw_arguments) for _ in range(2))
        except (ValueError, LimitExceeded) as error:
            return outcomes.not_json(error)
        validated = answer_at_once(partial(tool.validate, to_validate))
        if isinstance(validated, Raised):
            log_raised(execution, validated.error)
            return outcomes.invalid_arguments(validated.error)
        execution.admission = _Admission(tool, validated, NestedCalls(self.execute))
        execution.effects = tool.effects
        session = execution.session
        if session is not None and session.unknown_calls:
            execution.earlier_unknown = session.unknown_calls.matching(session.id, execution.argument_key)
        return await ask(self.policies, self.guards, execution)

    # ------------------------------------------------------------------------------------ the body

    async def _run_body(self, execution: ToolExecution) -> ToolResult:
        """The innermost handler. Never raises but for what stops the process or this task."""
        admission: _Admission = execution.admission
        stopped = _stopped(execution)
        if stopped is not None:
            return stopped
        tool, nested = admission.tool, admission.nested
        timeout_s = self._default_timeout_s if tool.timeout_s is None else tool.timeout_s
        execution.nested = nested.call
        admission.has_run = True
        nested.open()
        # fp: body.entering
        try:
            answer = await run_body(tool, admission.validated, execution, timeout_s)
        except asyncio.CancelledError:
            await nested.cancel()
            raise
        except BaseException:  # the process is being stopped: this is no time to wait
            nested.abandon()
            raise
        await nested.close()
        # fp: body.left
        if isinstance(answer, TimedOut):
            assert timeout_s is not None
            result = outcomes.timed_out(tool, timeout_s)
        elif isinstance(answer, Raised):
            log_raised(execution, answer.error)
            result = outcomes.tool_failed(answer.error)
        elif execution.signal.is_cancelled:
            result = outcomes.aborted(tool)
        else:
            result = checked(tool, answer, self._max_result_bytes, has_run=True)
        result = outcomes.fitted(result, self._max_result_bytes)
        admission.results.append(result)
        return result

    def _substitute(self, execution: ToolExecution, admission: "_Admission", answer: object) -> ToolResult:
        """What a middleware returned instead of the body's result, looked at as if it were that."""
        if not isinstance(answer, ToolResult):
            return outcomes.middleware_failed(
                f"a middleware returned {type(answer).__name__}, not a ToolResult",
                admission.tool,
                has_run=admission.has_run,
            )
        failure = answer.failure
        if failure is not None:
            if not outcomes.is_failure(failure):
                return outcomes.middleware_failed(
                    "a middleware returned a failure without code and message",
                    admission.tool,
                    has_run=admission.has_run,
                )
            return ToolResult(failure=ToolFailure(str.__str__(failure.code), str.__str__(failure.message)))
        if execution.signal.is_cancelled:
            return outcomes.aborted(admission.tool) if admission.has_run else outcomes.ABORTED_BEFORE_DISPATCH
        return checked(admission.tool, answer.value, self._max_result_bytes, has_run=admission.has_run)


@dataclass(slots=True, eq=False)
class _Admission:
    """What the service keeps of an admitted call. `results` are those that it made itself when the body had ended."""

    tool: Tool
    validated: Any
    nested: NestedCalls
    has_run: bool = False
    results: list[ToolResult] = field(default_factory=list)


def _stopped(execution: ToolExecution) -> ToolResult | None:
    """Why the body may not be entered, whatever the middleware let through; None if it may."""
    if _is_cancelled(execution):
        return outcomes.ABORTED_BEFORE_DISPATCH
    if execution.session is not None:
        try:
            execution.session.check_usable()
        except PersistenceError as error:
            return outcomes.checkpoint_failed(error)
    return None


def _is_cancelled(execution: ToolExecution) -> bool:
    """Whether somebody wants an end. Losing the session sets the signal too, but then the call is told of that."""
    session = execution.session
    is_lost = session is not None and session.lost is not None and execution.signal.cause in LOST.values()
    return execution.signal.is_cancelled and not is_lost


def _fault(execution: ToolExecution, admission: _Admission, error: BaseException) -> ToolResult:
    """What came out of the middleware as an exception: its own, or that of the checkpoint."""
    log_raised(execution, error)
    if isinstance(error, MiddlewareFailed) or not isinstance(error, Exception):
        return outcomes.middleware_failed(error_text(error), admission.tool, has_run=admission.has_run)
    if isinstance(error, AbortedBeforeDispatch) or _is_cancelled(execution):
        return outcomes.ABORTED_BEFORE_DISPATCH
    return outcomes.checkpoint_failed(error)

"""One turn: open the step; stream; record; run the calls; record their results; tell the listeners; close."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from app.agent.answering import ask
from app.agent.ending import as_failure, end_turn
from app.agent.retry import Fail, Retry, RetryPolicy
from app.agent.step import PostStepListener, Step, run_listeners
from app.agent.tool_calls import ToolCalls
from app.agent.turn import Turn, TurnFailed
from app.llm.chunks import failure_json
from app.llm.service import LlmService
from app.llm.types import LlmError
from app.messages import Failure
from app.middleware import Named
from app.session import events as ev
from app.session.errors import ConfigurationError
from app.tools.service import ToolService

logger = logging.getLogger(__name__)


class AgentLoop:
    """Runs turns. Services and lists come built; the loop decides what is recorded, and in which order."""

    def __init__(
        self,
        llm: LlmService,
        tools: ToolService,
        post_step: Sequence[Named[PostStepListener]],
        retry: RetryPolicy,
        *,
        max_parallel_tools: int = 10,
    ) -> None:
        """Raises ConfigurationError for a `max_parallel_tools` that is no integer of 1 or more."""
        if type(max_parallel_tools) is not int or max_parallel_tools < 1:
            raise ConfigurationError(f"max_parallel_tools is an integer of 1 or more, not {max_parallel_tools!r}")
        self.llm = llm
        self.tools = tools
        self.post_step = tuple(post_step)
        self._retry = retry
        self._max_parallel_tools = max_parallel_tools

    async def run_turn(self, turn: Turn) -> None:
        """Take the oldest waking message, and return when its turn has ended. A turn ends exactly once, whatever fails.

        Nothing is recorded if it has to stop before that, or if the message was dropped meanwhile. Raises LimitExceeded
        if the log is too long for another turn; then nothing was recorded either.
        """
        if turn.must_stop or not turn.session.state.pending_of("next_turn", "next_step"):
            return
        self._open(turn)
        # fp: turn.opened
        failure: TurnFailed | None = None
        try:
            await turn.recorded()
            while await self._step(turn):
                pass
        except Exception as error:  # every way a turn can fail has its code; what has none is a bug and says so
            failure = as_failure(error, turn)
        # fp: turn.ending
        await end_turn(turn, failure)
        # fp: turn.ended

    def _open(self, turn: Turn) -> None:
        state = turn.session.state
        message = state.pending_of("next_turn", "next_step")[0]
        taken = [*state.pending_of("context"), message]
        number = turn.number + 1
        turn.session.append(
            ev.TurnStart(number, [entry.id for entry in taken]),
            *(ev.UserMessage(number, entry.value, entry.placement) for entry in taken),
        )

    async def _step(self, turn: Turn) -> bool:
        """One step; whether another one is owed."""
        await turn.take_in()
        if turn.must_stop:
            return False
        messages = turn.session.messages
        await turn.record(ev.StepStart(turn.number, turn.step + 1))
        # fp: step.opened
        try:
            answer = await ask(self.llm, self.tools.tool_set.specs, turn, messages)
        except LlmError as error:
            return await self._retry_after(turn, error.failure)
        if answer is None:  # cancelled, and nothing was visible yet
            return False
        turn.earlier_failures.clear()
        await turn.record(answer)
        # fp: answer.recorded
        if answer.interrupted:
            return False
        if answer.calls:
            await ToolCalls(self.tools, turn, self._max_parallel_tools).run()
        # fp: calls.answered
        was_steered = await turn.take_in()
        await run_listeners(self.post_step, Step(turn.session, turn.number, turn.step, turn.signal, turn.accept))
        # fp: step.heard
        if turn.session.is_lost:  # the step is left open, so that the end can say in which one
            return False
        await turn.record(ev.StepEnd(turn.number, turn.step))
        # fp: step.closed
        is_owed = bool(answer.calls) or was_steered or bool(turn.session.state.pending_of("next_step"))
        return is_owed and not turn.must_stop

    async def _retry_after(self, turn: Turn, failure: Failure) -> bool:
        """Close the failed step and ask the retry policy; whether another step is owed. Raises TurnFailed."""
        step = turn.step
        await turn.record(ev.StepEnd(turn.number, step))
        if turn.must_stop:
            return False
        decision = await self._decide(turn, failure)
        if turn.must_stop:
            return False
        if isinstance(decision, Fail):
            raise TurnFailed(failure.code, failure.message, step)
        turn.earlier_failures.append(failure)
        retry, failed = len(turn.earlier_failures), failure_json(failure)
        await turn.record(
            ev.LlmRetry(turn.number, step, retry, decision.delay_ms, failed, max_retries=decision.max_retries)
        )
        # fp: retry.recorded
        await turn.signal.wait_for(decision.delay_ms / 1000)
        return not turn.must_stop

    async def _decide(self, turn: Turn, failure: Failure) -> Retry | Fail:
        try:
            return await self._retry(failure, tuple(turn.earlier_failures), turn.number, turn.step, turn.signal)
        except Exception:  # a retry policy is foreign code; the turn then ends with the failure it was asked about
            logger.exception("the retry policy failed on %s", failure.code)
            return Fail()

"""The calls of one step: started in the order of the message, perhaps overlapping, answered in that order again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from app.agent.step import CheckpointFailed
from app.agent.turn import Turn
from app.session import events as ev
from app.session.log_state import OpenCall
from app.session.recovery import closing_results
from app.tools.service import ToolService
from app.tools.types import ABORTED_BEFORE_DISPATCH, ToolExecution, ToolResult


class ToolCalls:
    """Runs the open calls of a turn's step. At most `max_parallel` bodies at a time, exclusive ones alone."""

    def __init__(self, tools: ToolService, turn: Turn, max_parallel: int) -> None:
        self._tools = tools
        self._turn = turn
        self._max_parallel = max_parallel
        self._running: set[asyncio.Task[None]] = set()
        self._results: dict[str, ToolResult] = {}
        self._recording = asyncio.Lock()
        self._checkpoint_failure: CheckpointFailed | None = None

    async def run(self) -> None:
        """Return when every call of the message has its result in the log.

        Raises CheckpointFailed if a flush after a result failed, and what went wrong in here; by then every started
        body has ended and no call is open.
        """
        try:
            for call in self._turn.session.state.turn.calls:
                is_safe = self._tools.is_parallel_safe(call.name, call.arguments)
                await self._wait_for_room(self._max_parallel if is_safe else 1)
                if self._turn.must_stop:
                    break
                await self._start(call)
                if not is_safe:
                    await self._wait_for_room(1)
            await self._wait_for_room(1)
            await self._skip_rest()
        except BaseException as error:  # whatever it was: no body is left running, no call open
            if isinstance(error, asyncio.CancelledError):  # this very task is being ended, and its bodies with it
                for body in self._running:
                    body.cancel()
            await self._give_up()
            raise
        if self._checkpoint_failure is not None:
            raise self._checkpoint_failure

    async def _wait_for_room(self, bodies: int) -> None:
        """Wait until fewer than `bodies` bodies run."""
        while len(self._running) >= bodies:
            done, self._running = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _start(self, call: OpenCall) -> None:
        execution = self._execution(call)
        refusal = await self._record_call(call)
        # fp: call.recorded
        if refusal is None:
            refusal = await self._tools.admit(execution)
        if refusal is None:
            self._running.add(asyncio.get_running_loop().create_task(self._run_body(execution)))
        else:
            self._results[call.id] = refusal
            await self._record_results()

    def _execution(self, call: OpenCall) -> ToolExecution:
        turn = self._turn
        return ToolExecution(
            name=call.name,
            raw_arguments=call.arguments,
            call_id=call.id,
            signal=turn.signal,
            session=turn.session,
            turn=turn.number,
            step=turn.step,
            accept=turn.accept,
            record=self._record,
        )

    async def _record_call(self, call: OpenCall) -> ToolResult | None:
        """Record that the call is started; returns the result that keeps its body out, if there is one already."""
        try:
            await self._turn.record(self._call_event(call))
        except CheckpointFailed as error:
            return ToolResult.error("CHECKPOINT_FAILED", str(error))
        if self._checkpoint_failure is not None:
            return ToolResult.error("CHECKPOINT_FAILED", str(self._checkpoint_failure))
        return None

    def _call_event(self, call: OpenCall) -> ev.ToolCall:
        tool = self._tools.tool_set.get(call.name)
        effects = "side_effect" if tool is None else tool.effects
        return ev.ToolCall(self._turn.number, self._turn.step, call.id, call.name, call.arguments, effects)

    async def _run_body(self, execution: ToolExecution) -> None:
        self._results[execution.call_id] = await self._tools.dispatch(execution)
        # fp: body.answered
        await self._record_results()

    async def _record_results(self) -> None:
        """Record the results that are there, as far as the order of the message allows."""
        async with self._recording:
            while (opened := self._turn.session.state.turn.open_calls) and opened[0].id in self._results:
                await self._record(self._result_event(opened[0], self._results[opened[0].id]))
                # fp: result.recorded

    async def _record(self, *events: ev.EventData) -> None:
        try:
            await self._turn.record(*events)
        except CheckpointFailed as error:  # the effect is recorded all the same; no later body is entered
            self._checkpoint_failure = self._checkpoint_failure or error

    def _result_event(self, call: OpenCall, result: ToolResult) -> ev.ToolResult:
        turn, step = self._turn.number, self._turn.step
        if result.failure is None:
            return ev.ToolResult(turn, step, call.id, call.seq, False, value=result.value)
        error = {"code": result.failure.code, "message": result.failure.message}
        return ev.ToolResult(turn, step, call.id, call.seq, True, error=error)

    async def _skip_rest(self) -> None:
        """Calls that were not started any more: each recorded with its result, never apart."""
        for call in self._turn.session.state.turn.open_calls:
            recorded = replace(call, seq=self._turn.session.state.length)
            await self._record(self._call_event(call), self._result_event(recorded, ABORTED_BEFORE_DISPATCH))
            # fp: call.skipped

    async def _give_up(self) -> None:
        """Something in here failed: let bodies end, record the results that exist, close the rest truthfully."""
        await asyncio.gather(*self._running, return_exceptions=True)
        for call, closing in zip(
            self._turn.session.state.turn.open_calls, closing_results(self._turn.session.state, {}), strict=True
        ):
            result = self._results.get(call.id)
            await self._record(closing if result is None else self._result_event(call, result))

"""A post-step listener of one's own: it records how many calls each step made, as an event in the session's log."""

from app.agent.step import Step
from app.session.events import ExtensionType

STEP_CALLS = ExtensionType("audit/calls", ignorable=True)


class Audit:
    """Awaited after every step. Above `checkpoint`, what it appends is durable with the step; below, a flush later."""

    appends = (STEP_CALLS,)

    async def __call__(self, step: Step) -> None:
        step.append(STEP_CALLS, {"calls": len(step.session.state.turn.calls)})

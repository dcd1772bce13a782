"""A guard of one's own: nothing large is paid again while nobody knows whether it was paid before.

The bank does not answer in time, so whether the first call paid is not known; and the model, in a hurry, plans the same
call again. This guard knows what is at stake; the shipped one, `repeat_unknown = refuse`, is for all that has side
effects. `python -m examples.guard` prints::

    5000 euros: tool call timed out after 0.01 s; it may have taken effect
    5000 euros: call-1 may have been paid (TOOL_TIMEOUT); ask the bank first
    5 euros: tool call timed out after 0.01 s; it may have taken effect
    5 euros: tool call timed out after 0.01 s; it may have taken effect
"""

import asyncio

from app.llm.scripted import ScriptedAdapter, call, say
from app.tools.schema import tool
from app.tools.types import ToolExecution
from containers.lifespan import running
from containers.settings import Settings


@tool(timeout_s=0.01)
async def pay(euros: int) -> str:
    """Pay somebody."""
    await asyncio.Event().wait()  # the bank has what it needs, and says nothing
    return "it never comes to this"


def ask_first(execution: ToolExecution) -> str | None:
    """Why this call is refused, or None. Equal calls are those of one tool with equal arguments in one session."""
    if not execution.earlier_unknown or execution.name != "pay" or execution.arguments["euros"] < 100:
        return None
    call_id, code = execution.earlier_unknown[-1]
    return f"{call_id} may have been paid ({code}); ask the bank first"


SETTINGS = Settings(
    persistence={"kind": "memory"},
    tools={"extra": {"pay": f"{__name__}:pay"}},
    guards={"extra": {"ask_first": f"{__name__}:ask_first"}},
    adapters={"extra": {"scripted": f"{__name__}:model"}},
    model={"adapter": "scripted", "name": "any"},
)
AMOUNTS = [5000, 5000, 5, 5]
model = ScriptedAdapter(
    [*(call("pay", {"euros": euros}, id=f"call-{n}") for n, euros in enumerate(AMOUNTS, 1)), say("I could not pay.")]
)


async def main() -> None:
    async with running(SETTINGS) as application:
        agent = await application.agents.create()
        await agent.wait(agent.send("Pay the bills."))
        results = [event.data["error"]["message"] for event in agent.session.events if event.type == "tool/result"]
        for euros, message in zip(AMOUNTS, results, strict=True):
            print(f"{euros} euros: {message}")


if __name__ == "__main__":
    asyncio.run(main())

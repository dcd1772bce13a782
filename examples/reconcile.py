"""A tool that can tell, after a crash, what became of a call: then the model is told a fact and no doubt.

The process dies between paying and recording that it has paid. Without `reconcile` the model would read that the call
may or may not have taken effect, and could only ask. `python -m examples.reconcile` prints::

    in the bank: paid 5 euros to Ada
    the model reads: paid 5 euros to Ada
    in the bank: paid 5 euros to Ada
"""

import asyncio
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

from app.llm.scripted import ScriptedAdapter, call
from app.messages import ToolMessage
from app.session.recovery import Completed, NotStarted, RecordedCall
from app.tools.schema import tool
from app.tools.types import ToolExecution
from containers.lifespan import running
from containers.settings import Settings

BANK = Path(os.environ.setdefault("EXAMPLE_PLACE", tempfile.mkdtemp()))  # both processes find the same


async def look(recorded: RecordedCall) -> Completed | NotStarted:
    """Ask the bank, which knows a payment by the key it came with. Looking pays nothing."""
    payment = BANK / recorded.idempotency_key
    return Completed(payment.read_text()) if payment.exists() else NotStarted()


@tool(reconcile=look)
async def pay(to: str, euros: int, execution: ToolExecution) -> str:
    """Pay somebody."""
    (BANK / execution.idempotency_key).write_text(f"paid {euros} euros to {to}")
    os.kill(os.getpid(), signal.SIGKILL)  # the worst moment of all
    return "it never comes to this"


SETTINGS = Settings(
    persistence={"path": BANK.with_suffix(".db")},
    tools={"extra": {"pay": f"{__name__}:pay"}},
    adapters={"extra": {"scripted": f"{__name__}:model"}},
    model={"adapter": "scripted", "name": "any"},
)
model = ScriptedAdapter([call("pay", {"to": "Ada", "euros": 5})])


async def begin() -> None:
    async with running(SETTINGS) as application:
        agent = await application.agents.create("s")
        await agent.wait(agent.send("Pay Ada 5 euros."))


async def go_on() -> None:
    async with running(SETTINGS) as application:
        agent = await application.agents.resume("s")
        told = [message.text for message in agent.session.messages if isinstance(message, ToolMessage)]
        print("the model reads:", *told)


def in_the_bank() -> None:
    print("in the bank:", *(payment.read_text() for payment in BANK.iterdir()))


def first_life() -> None:
    asyncio.run(begin())


if __name__ == "__main__":
    child = multiprocessing.Process(target=first_life)
    child.start()
    child.join()
    in_the_bank()
    asyncio.run(go_on())
    in_the_bank()

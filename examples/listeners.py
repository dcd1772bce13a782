"""Two listeners, one above `checkpoint` and one below, and what is left of what they record when the process dies.

What one above appends is durable when the checkpoint returns; what one below appends waits for the next flush, which
here never comes: the last listener kills the process. `python -m examples.listeners` prints::

    assistant/message
    note/above
    durable: post-step
"""

import asyncio
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

from app.agent.step import Step
from app.llm.scripted import ScriptedAdapter, say
from app.session.events import ExtensionType
from containers.lifespan import running
from containers.settings import Settings

PLACE = Path(os.environ.setdefault("EXAMPLE_PLACE", tempfile.mkdtemp()))  # both processes find the same


class Notes:
    """Records that the step was seen."""

    def __init__(self, name: str) -> None:
        self._type = ExtensionType(name, ignorable=True)
        self.appends = (self._type,)

    async def __call__(self, step: Step) -> None:
        step.append(self._type, {"step": step.step})


async def die(step: Step) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


above, below = Notes("note/above"), Notes("note/below")
model = ScriptedAdapter([say("Hello.")])
SETTINGS = Settings(
    persistence={"path": PLACE / "sessions.db"},
    write_behind_ms=None,
    post_step={
        "extra": {name: f"{__name__}:{name}" for name in ("above", "below", "die")},
        "order": ["above", "checkpoint", "below", "die"],
        "after_checkpoint_ok": ["below"],  # without this the start is refused: a crash can lose what it appends
    },
    adapters={"extra": {"scripted": f"{__name__}:model"}},
    model={"adapter": "scripted", "name": "any"},
)


async def live() -> None:
    async with running(SETTINGS) as application:
        agent = await application.agents.create("s")
        await agent.wait(agent.send("Hello?"))


async def look() -> None:
    async with running(SETTINGS) as application:
        kept = await application.sessions.inspect("s")
        for event in kept.events[-2:]:
            print(event.type)
        print("durable:", kept.ends[-1].reason)


def first_life() -> None:
    asyncio.run(live())


if __name__ == "__main__":
    child = multiprocessing.Process(target=first_life)
    child.start()
    child.join()
    asyncio.run(look())

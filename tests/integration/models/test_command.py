"""The command with a vendor's server on loopback: what its user sees, and a kill inside the HTTP stream."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.command import ROOT, Command, Done, types
from tests.integration.models.asking import VENDORS
from tests.support.vendors import (
    KEY,
    Answer,
    Vendor,
    VendorServer,
    anthropic_error,
    delta,
    error,
    openai_error,
    said,
    stream,
)


@pytest.fixture
def beforehand(tmp_path: Path) -> Command:
    return Command(tmp_path, write_behind_ms="off", retry__base_ms=1)


async def run(beforehand: Command, server: VendorServer, *arguments: str, **settings: Any) -> Done:
    """`run` with the key of this vendor in the environment."""
    model = ("--model", f"{server.vendor}:m", "--base-url", server.url)
    key: dict[str, Any] = {f"models__{server.vendor}__api_key": KEY}
    return await asyncio.to_thread(lambda: beforehand("run", *arguments, *model, **key, **settings))


@pytest.mark.parametrize("vendor", VENDORS)
async def test_an_answer_is_printed_and_a_tool_is_run(beforehand: Command, vendor: Vendor) -> None:
    call = ("c1", "write_file", '{"path": "a.txt", "content": "hello"}')
    async with VendorServer(vendor, stream(vendor, "Writing.", call), stream(vendor, "Done.")) as server:
        done = await run(beforehand, server, "write it", "--session", "s")
    assert (done.code, done.out) == (0, "Writing.\nDone.\n")
    assert (beforehand.directory / "a.txt").read_text() == "hello"
    assert KEY in said(server.heads)
    assert KEY not in done.err + str(await asyncio.to_thread(beforehand.shown, "s"))


@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_named_model_answers_with_its_key_from_the_secrets_directory(
    beforehand: Command, vendor: Vendor
) -> None:
    secrets = beforehand.directory / "secrets"
    secrets.mkdir()
    (secrets / "BEFOREHAND_MODELS__FAST__API_KEY").write_text(f"{KEY}\n")
    async with VendorServer(vendor, stream(vendor, "Hello"), stream(vendor, "Hello")) as server:
        (beforehand.directory / "beforehand.toml").write_text(
            f'[base.models.fast]\nadapter = "{vendor}"\nname = "small"\nbase_url = "{server.url}"\ntemperature = 0.5\n'
            f'[base.models.fast.headers]\nx-team = "canary"\n[base.models.fast.options]\nseed = 7\n'
        )
        for model in ("fast", "fast:large"):
            done = await asyncio.to_thread(lambda: beforehand("run", "hi", "--model", model, secrets_dir=secrets))  # noqa: B023
            assert (done.code, done.out) == (0, "Hello\n")
        shown = await asyncio.to_thread(lambda: beforehand("config", "show", "--json", secrets_dir=secrets))
        explained = await asyncio.to_thread(lambda: beforehand("explain", "--model", "fast", secrets_dir=secrets))
    assert [(body["model"], body["seed"], body["temperature"]) for body in server.bodies] == [
        ("small", 7, 0.5),
        ("large", 7, 0.5),
    ]
    assert server.heads[0]["x-team"] == "canary"
    values = {setting["name"]: setting["value"] for setting in shown.records}
    assert (values["models.fast.api_key"], values["models.fast.headers.x-team"]) == ("**********", "**********")
    assert (values["models.fast.name"], values["models.fast.options.seed"]) == ("small", 7)
    assert f"model            fast:small, asked with {vendor} at {server.url}\n" in explained.out
    assert [text for text in (shown.out, explained.out) if KEY in text or "canary" in text] == []


# Each: the vendor, what it answers, why the turn ended.
SEEN: list[tuple[Vendor, Sequence[Answer], str]] = [
    (
        "anthropic",
        [error(529, anthropic_error("Overloaded", "overloaded_error"))] * 3,
        "SERVER: Overloaded",
    ),
    ("openai", [error(429, openai_error("quota", "insufficient_quota"))], "QUOTA: quota"),
    (
        "openai",
        [Answer([delta(content="Hel")])] * 3,
        "STREAM_CLOSED: the model's stream ended before it was finished",
    ),
    (
        "openai",
        [Answer([b"data: {\n\n"])],
        "INVALID_STREAM: the stream held an event that is no JSON",
    ),
]


@pytest.mark.parametrize(("vendor", "answers", "why"), SEEN)
async def test_a_failure_is_one_line_with_its_code(
    beforehand: Command, vendor: Vendor, answers: Sequence[Answer], why: str
) -> None:
    async with VendorServer(vendor, *answers) as server:
        done = await run(beforehand, server, "hi")
    assert done.code == 1
    assert done.err.splitlines()[-1] == f"beforehand: turn 1 ended in error: {why}"


async def test_a_wrong_key_is_told_without_the_key(beforehand: Command) -> None:
    async with VendorServer("openai", key="another") as server:
        done = await run(beforehand, server, "hi")
    assert done.code == 1
    assert "AUTH: Incorrect API key provided: Bearer **********" in done.err
    assert KEY not in done.err


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_missing_key_is_told_before_anything_is_stored(beforehand: Command, vendor: Vendor) -> None:
    address = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}[vendor]
    variable = f"BEFOREHAND_MODELS__{vendor.upper()}__API_KEY"
    line = f"{vendor}: no key is set for {address}; set {variable}, or put a file of that name into secrets_dir"
    assert beforehand("run", "hi", "--model", f"{vendor}:m") == Done(2, "", f"beforehand: {line}\n")
    assert beforehand.is_untouched


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_missing_package_is_told_before_anything_is_stored(beforehand: Command, vendor: Vendor) -> None:
    (beforehand.directory / "sitecustomize.py").write_text(
        "import importlib.util as util, sys\n"
        "find = util.find_spec\n"
        f"util.find_spec = lambda name, *more: None if name == {vendor!r} else find(name, *more)\n"
    )
    settings = {"models__openai__api_key": "k", "models__anthropic__api_key": "k"}
    environment = {**beforehand.environment(dict(settings)), "PYTHONPATH": f"{beforehand.directory}:{ROOT}"}
    code = "import sys; from app.entrypoints.cli import main; sys.exit(main())"
    done = _python(code, ["run", "hi", "--model", f"{vendor}:m"], beforehand.directory, environment)
    line = f"{vendor}: the package {vendor!r} is not installed; pip install 'beforehand[{vendor}]'"
    assert done == Done(2, "", f"beforehand: {line}\n")


def _python(code: str, arguments: list[str], directory: Path, environment: dict[str, str]) -> Done:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"models__fast__bse_url": "x"},
            (
                "models.fast.bse_url (BEFOREHAND_MODELS__FAST__BSE_URL): names no setting; "
                "did you mean models.fast.base_url?"
            ),
        ),
        (
            {"models__fast__adapter": "opnai"},
            "models.fast.adapter (BEFOREHAND_MODELS__FAST__ADAPTER): takes openai or anthropic",
        ),
        (
            {"models__fast__base_url": "http://user:canary@host"},
            (
                "models.fast.base_url (BEFOREHAND_MODELS__FAST__BASE_URL): "
                "takes http(s)://host:port/path, without user and password"
            ),
        ),
        ({"models__fast__name": "m"}, "models.fast.adapter: not set; takes openai or anthropic"),
        (
            {"models__script__adapter": "openai"},
            "models.script: a name is of a-z, 0-9, - and _, and none of script, python",
        ),
    ],
)
def test_a_named_model_that_is_wrong_is_told_by_its_setting(
    beforehand: Command, settings: dict[str, Any], line: str
) -> None:
    assert beforehand("config", "check", **settings) == Done(2, "", f"beforehand: {line}\n")


def test_a_base_url_alone_says_nothing(beforehand: Command) -> None:
    line = "beforehand: --base-url goes with --model, which says whose address it is\n"
    assert beforehand("run", "hi", "--base-url", "http://127.0.0.1:1/v1") == Done(2, "", line)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of a store."""
    if request.param == "sqlite":
        return {}
    return {"persistence__kind": "postgres", "persistence__dsn": request.getfixturevalue("postgres_dsn")}


@pytest.mark.parametrize("vendor", VENDORS)
async def test_killed_inside_the_http_stream_it_goes_on_with_the_right_transcript(
    beforehand: Command, vendor: Vendor, store: dict[str, Any]
) -> None:
    """E2E-01: what was streamed by then is gone, the prompt is not, and the next request is a valid one."""
    pieces = list(stream(vendor, "Hello you", ("c1", "write_file", "{}"), reasoning="hm").pieces)
    counted = {"usage": {"prompt_tokens": 7}} if vendor == "openai" else {}
    answers = Answer([*pieces[:-3], "hang"]), stream(vendor, "Again.", **counted)
    async with VendorServer(vendor, *answers) as server:
        settings: dict[str, Any] = {f"models__{vendor}__api_key": KEY, **store}
        model = ("--model", f"{vendor}:m", "--base-url", server.url)

        async def command(*arguments: str) -> Done:
            return await asyncio.to_thread(lambda: beforehand(*arguments, **settings))

        with beforehand.start("run", "hi", "--session", "s", *model, **settings) as running:
            await asyncio.to_thread(running.wait_for_output, "Hello you")
            running.kill()
        await asyncio.wait_for(server.hung_up.wait(), 60)
        (before,) = (await command("show", "s", "--json")).records
        done = await command("resume", "s", "go on", "--take-over", *model)
        (after,) = (await command("show", "s", "--json")).records
    opened = ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header"]
    assert types(before) == opened
    assert (done.code, done.out) == (0, "Again.\n")
    assert types(after) == [
        *opened,
        "step/end",
        "turn/end{interrupted}",
        "inbox/accepted",
        *opened[1:],
        "chunk*",
        "assistant/message",
        "usage/total",
        "session/title",
        "step/end",
        "turn/end{completed}",
    ]
    assert [text for text in ("hi", "go on") if text not in said(server.bodies[1:])] == []
    assert "Hello" not in said(server.bodies[1:])

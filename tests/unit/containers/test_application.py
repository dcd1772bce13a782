"""The graph as a whole: each setting reaches the part that it is for, and what cannot be built is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dependency_injector import providers

from app.agent.turn import ModelConfig
from app.session.drain import DrainLimits
from app.session.errors import ConfigurationError
from app.session.events import ExtensionType
from app.session.session import LogLimits
from app.session.values import ValueLimits
from containers import parts
from containers.application import Application, build, check
from containers.settings import Settings, load_settings
from containers.shown import MASK, settings_with_sources
from containers.tool_settings import BUILT_IN_TOOLS
from persistence.sqlite import SqlitePersistence
from policy.checkpoint import (
    EveryEventCheckpointPolicy,
    SemanticCheckpointPolicy,
    TurnEndCheckpointPolicy,
)
from tests.unit.containers.things import HERE


def problem(**arguments: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        build(load_settings(**arguments))
    return str(caught.value)


def test_building_makes_no_file(here: Path) -> None:
    build(load_settings())
    assert list(here.iterdir()) == []


def test_the_branches_of_each_selector_are_the_shipped_kinds_and_the_extra() -> None:
    assert tuple(Application.persistence.providers) == (*parts.BACKENDS, "extra")  # type: ignore[attr-defined]
    assert tuple(Application.checkpoint.providers) == (*parts.POLICIES, "extra")  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", parts.BACKENDS)
def test_every_shipped_backend_is_built_by_its_name(kind: str) -> None:
    dsn = {"dsn": "postgresql://me:canary@localhost/db"} if kind == "postgres" else {}
    assert build(load_settings(persistence={"kind": kind, **dsn})).persistence.kind == kind


def test_postgres_needs_a_dsn_and_never_shows_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "persistence.dsn: not set; postgres needs it: postgresql://user@host/database"
    assert problem(persistence={"kind": "postgres"}) == told
    monkeypatch.setenv("BEFOREHAND_PERSISTENCE__DSN", "postgresql://me:canary@localhost/db")
    settings = load_settings(persistence={"kind": "postgres"})
    shown = {setting.name: setting.value for setting in settings_with_sources(settings)}
    assert shown["persistence.dsn"] == MASK
    assert "canary" not in f"{settings!r} {settings.persistence!r} {build(settings).persistence!r}"


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("semantic", SemanticCheckpointPolicy),
        ("turn_end", TurnEndCheckpointPolicy),
        ("every_event", EveryEventCheckpointPolicy),
    ],
)
def test_every_shipped_policy_is_built_by_its_name(kind: str, made: type) -> None:
    assert type(build(load_settings(policy={"kind": kind})).checkpoint) is made


def test_an_unknown_backend_or_policy_is_refused_with_the_allowed_names() -> None:
    """ORD-07."""
    assert problem(persistence={"kind": "sqlit"}) == (
        "persistence.kind: no backend is named 'sqlit' (did you mean 'sqlite'?); "
        "known names: jsonl, memory, postgres, sqlite"
    )
    assert problem(policy={"kind": "never", "extra": {"mine": f"{HERE}:Mine"}}) == (
        "policy.kind: no checkpoint policy is named 'never'; known names: every_event, mine, semantic, turn_end"
    )
    told = "persistence.kind: no backend is named 'extra'; known names: jsonl, memory, postgres, sqlite"
    assert problem(persistence={"kind": "extra"}) == told


def test_a_backend_that_forgets_is_refused_where_durability_is_required() -> None:
    """POL-33."""
    told = "require_durable (argument): the backend 'memory' is not durable; choose another"
    assert problem(profile="test", require_durable=True) == told
    told = "require_durable ([prod] of the shipped profiles.toml): the backend 'memory' is not durable; choose another"
    assert problem(profile="prod", persistence={"kind": "memory"}) == told
    assert build(load_settings("test")).persistence.durable is False


def test_each_setting_reaches_its_part(here: Path) -> None:
    settings = load_settings(
        persistence={"path": "there.db"},
        owner="me",
        lease_s=20,
        lease_margin_s=4,
        write_behind_ms="off",
        flush_timeout_ms=7,
        max_batch_events=8,
        max_batch_bytes=9,
        max_event_bytes=1000,
        max_tool_result_bytes=11,
        max_session_events=12,
        max_depth=13,
        max_integer_digits=14,
        system="be brief",
        model={"adapter": "mine", "name": "m", "temperature": 0.5, "max_tokens": 15, "stop": ["x"]},
        adapters={"extra": {"mine": f"{HERE}:Model"}},
    )
    built = build(settings)
    assert isinstance(built.persistence, SqlitePersistence)
    assert repr(built.persistence) == "<SqlitePersistence there.db, not open>"
    assert (built.sessions.owner.name, built.sessions.owner.lease_s) == ("me", 20)
    assert built.sessions.owner.process is not None
    assert built.sessions.drain_limits == DrainLimits(8, 9, None, 7)
    assert parts.log_limits(settings) == LogLimits(1000, 12, ValueLimits(13, 14))
    assert built.agents.config == ModelConfig("mine", "m", 0.5, 15, ("x",), "be brief")
    assert built.agents.sessions is built.sessions
    assert built.agents.loop is built.loop
    assert (built.loop.llm, built.loop.tools) == (built.llm, built.tools)


def test_the_built_in_tools_are_those_that_settings_know() -> None:
    tools = build(load_settings(tools={"enabled": BUILT_IN_TOOLS, "sql": {"dsn": "postgresql:///d"}})).tools.tool_set
    assert tuple(tools.tools) == BUILT_IN_TOOLS


def test_a_script_is_read_when_the_application_is_built(here: Path) -> None:
    (here / "script.json").write_text('{"steps": [{"say": "hi"}]}')
    model = {"adapter": "script", "name": "s", "script": "script.json"}
    assert build(load_settings(model=model)).llm.adapters == ("openai", "anthropic", "local", "script")
    (here / "script.json").write_text('{"steps": [{"shout": "hi"}]}')
    assert problem(model=model).startswith("the script 'script.json' is wrong at /steps/0")
    (here / "script.json").unlink()
    assert problem(model=model) == "cannot read the script 'script.json': No such file or directory"


def test_a_scripted_model_without_a_script_is_refused() -> None:
    told = "model.script: the adapter 'script' needs it, the path of a file"
    assert problem(model={"adapter": "script", "name": "s"}) == told


def test_an_unknown_adapter_is_refused_with_the_known_names() -> None:
    told = "model.adapter (argument): no adapter is named 'scrip' (did you mean 'script'?); known names: "
    told += "anthropic, local, openai, script"
    assert problem(model={"adapter": "scrip"}) == told


def test_the_types_of_all_listeners_are_declared_also_of_those_that_do_not_run() -> None:
    settings = load_settings(
        post_step={"order": ["checkpoint"], "extra": {"audit": f"{HERE}:Audit"}},
        extension_events={"mine/word": True, "mine/other": False},
    )
    assert set(build(settings).sessions.extensions.values()) == {
        ExtensionType("usage/total", ignorable=True),
        ExtensionType("session/title", ignorable=True),
        ExtensionType("audit/seen", ignorable=True),
        ExtensionType("mine/word", ignorable=True),
        ExtensionType("mine/other", ignorable=False),
    }


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ({"word": True}, "'word' is no name for one: it takes name/word, and none that is built in"),
        ({"turn/end": True}, "'turn/end' is no name for one: it takes name/word, and none that is built in"),
        ({"usage/total": False}, "'usage/total' is declared both ignorable and not"),
    ],
)
def test_an_extension_event_that_cannot_be_one_is_refused(events: dict[str, bool], told: str) -> None:
    assert problem(extension_events=events) == f"extension events: {told}"


def test_the_faults_of_different_parts_are_told_together() -> None:
    told = problem(
        persistence={"kind": "memry"}, tools={"enabled": ["x"]}, model={"adapter": "y"}, guards={"order": ["z"]}
    )
    assert [line.partition(":")[0] for line in told.split("\n")] == [
        "persistence.kind",
        "tools.enabled (argument)",
        "guards.order (argument)",
        "model.adapter (argument)",
    ]


def test_a_list_that_the_container_overrides_is_looked_at_too() -> None:
    application = Application(settings=Settings(persistence={"kind": "memory"}))
    application.tool_middleware.override(providers.Object(()))
    with pytest.raises(ConfigurationError) as caught:
        check(application)
    assert str(caught.value) == (
        "tool_middleware (set in the container): 'checkpoint' is missing, and a SemanticCheckpointPolicy needs it here"
    )


def test_each_container_builds_parts_of_its_own() -> None:
    first, second = (build(load_settings("test")) for _ in range(2))
    assert first.persistence is not second.persistence
    assert first.sessions is not second.sessions
    assert first.loop.post_step[0].call is not second.loop.post_step[0].call

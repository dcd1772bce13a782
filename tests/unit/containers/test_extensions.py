"""Things of a user's own, by dotted path and by entry point: what is made of them, and what is told of a bad one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.session.errors import ConfigurationError
from containers.application import Built, build
from containers.settings import load_settings
from tests.unit.containers import things
from tests.unit.containers.things import HERE

BUILT_IN = ["list_files", "read_file", "search_files", "write_file", "append_file"]


def built(**arguments: Any) -> Built:
    return build(load_settings("test", **arguments))


def problem(**arguments: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        built(**arguments)
    return str(caught.value)


def extra(path: str) -> dict[str, Any]:
    return {"post_step": {"extra": {"x": path}}}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("things", "a path is written package.module:attribute"),
        (":Audit", "a path is written package.module:attribute"),
        ("no.such.module:Audit", "there is no module 'no'"),
        ("tests.unit.containers.thing:Audit", "there is no module 'tests.unit.containers.thing'"),
        (f"{HERE}:Audits", f"'{HERE}' has no attribute 'Audits'"),
        (f"{HERE}:number", "a int cannot be called; it has to take (step)"),
        (f"{HERE}:Failing", "it cannot be loaded: RuntimeError: out of order"),
        (f"{HERE}:add", "it has to take (step): missing a required argument: 'b'"),
    ],
)
def test_a_path_that_leads_to_no_listener_is_told_with_its_setting_and_what_failed(path: str, told: str) -> None:
    assert problem(**extra(path)) == f"post_step.extra.x = {path!r}: {told}"


def test_an_import_that_fails_inside_the_module_is_not_mistaken_for_a_missing_module(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "halfway.py").write_text("import no_such_thing_at_all\n")
    monkeypatch.syspath_prepend(here)
    told = "it cannot be loaded: ModuleNotFoundError: No module named 'no_such_thing_at_all'"
    assert problem(**extra("halfway:X")) == f"post_step.extra.x = 'halfway:X': {told}"


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("post_step", "usage"),
        ("post_step", "checkpoint"),
        ("stream_middleware", "checkpoint"),
        ("tools", "read_file"),
        ("adapters", "script"),
        ("persistence", "sqlite"),
        ("policy", "turn_end"),
    ],
)
def test_a_name_that_is_taken_cannot_be_used_again(setting: str, name: str) -> None:
    """LLM-07: of settings, which can name an adapter twice only by naming one like the shipped one."""
    arguments = {setting: {"extra": {name: f"{HERE}:Audit"}}}
    assert problem(**arguments) == f"{setting}.extra.{name}: the name is taken; choose another one"


def test_two_adapters_that_call_themselves_the_same_go_by_the_names_that_settings_give_them() -> None:
    """LLM-07: so names are unique by construction."""
    names = {"first": f"{HERE}:Model", "second": f"{HERE}:make_model"}
    assert built(adapters={"extra": names}).llm.adapters == ("openai", "anthropic", "local", "first", "second")


def test_what_is_no_adapter_is_refused() -> None:
    told = f"adapters.extra.x = '{HERE}:number': a int is no adapter: it has no `stream`"
    assert problem(adapters={"extra": {"x": f"{HERE}:number"}}) == told


def test_a_plain_function_becomes_a_tool_under_the_name_in_the_settings() -> None:
    tools = built(tools={"extra": {"sum": f"{HERE}:add", "shout": f"{HERE}:shouted"}}).tools.tool_set
    assert [(spec.name, spec.description) for spec in tools.specs][-2:] == [
        ("sum", "Add two numbers."),
        ("shout", "Shout."),
    ]
    assert list(tools.tools) == [*BUILT_IN, "sum", "shout"]


def test_a_tool_that_has_another_name_is_refused() -> None:
    told = f"tools.extra.x = '{HERE}:shouted': this tool calls itself 'shout'; use that name"
    assert problem(tools={"extra": {"x": f"{HERE}:shouted"}}) == told


def test_only_the_tools_that_are_enabled_are_there_in_that_order() -> None:
    tools = built(
        tools={"enabled": ["run_command", "sum", "read_file"], "extra": {"sum": f"{HERE}:add"}}
    ).tools.tool_set
    assert list(tools.tools) == ["run_command", "sum", "read_file"]
    assert list(built(tools={"enabled": []}).tools.tool_set.tools) == []


def test_an_unknown_or_repeated_tool_is_refused_with_the_known_names() -> None:
    assert problem(tools={"enabled": ["read_fil", "read_file", "read_file"]}) == (
        "tools.enabled (argument): no tool is named 'read_fil' (did you mean 'read_file'?); 'read_file' is there "
        "twice; known names: append_file, fetch_url, list_files, read_file, run_command, search_files, sql_read, "
        "write_file"
    )


def test_a_backend_of_ones_own_gets_its_options() -> None:
    settings = {"kind": "mine", "extra": {"mine": f"{HERE}:Backend"}, "options": {"dsn": "x", "pool": 3}}
    application = built(persistence=settings, require_durable=True)
    assert isinstance(application.persistence, things.Backend)
    assert application.persistence.options == ("x", 3)
    assert application.sessions.persistence is application.persistence


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dsn": "bad canary-7f3a"}, "making it with persistence.options raised ValueError"),
        ({"dns": "canary-7f3a"}, "persistence.options do not fit: got an unexpected keyword argument 'dns'"),
    ],
)
def test_a_backend_that_cannot_be_made_is_told_without_what_its_options_hold(options: dict[str, str], why: str) -> None:
    told = problem(persistence={"kind": "mine", "extra": {"mine": f"{HERE}:Backend"}, "options": options})
    assert told == f"persistence.extra.mine = '{HERE}:Backend': {why}"


def test_what_lacks_parts_of_the_contract_is_no_backend() -> None:
    told = problem(persistence={"kind": "mine", "extra": {"mine": f"{HERE}:Model"}})
    assert told.startswith(
        f"persistence.extra.mine = '{HERE}:Model': a Model is no backend: it lacks kind, durable, open"
    )


def test_options_are_refused_where_nobody_would_read_them() -> None:
    told = "persistence.options: 'memory' has none; they are for persistence.extra"
    assert problem(persistence={"options": {"dsn": "x"}}) == told


@pytest.mark.parametrize("path", ["Mine", "make_policy"])
def test_a_checkpoint_policy_of_ones_own_gets_the_sessions(path: str) -> None:
    application = built(policy={"kind": "mine", "extra": {"mine": f"{HERE}:{path}"}})
    assert type(application.checkpoint) is things.Mine
    assert application.llm.middleware[0].call == application.checkpoint.before_request


def test_a_policy_with_a_place_that_does_not_exist_is_refused() -> None:
    told = problem(policy={"kind": "x", "extra": {"x": f"{HERE}:Astray"}})
    assert told == f"policy.extra.x = '{HERE}:Astray': its places are some of request, tool, step, append; not 'moon'"


# ------------------------------------------------------------------------------------------------ entry points


@pytest.fixture
def package(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that offers something of each kind."""
    offered = {
        "beforehand.listeners": "audit = {0}:Audit\nbroken = {0}:Failing\nusage = {0}:quiet",
        "beforehand.stream_middleware": "a = {0}:stream_a",
        "beforehand.tool_middleware": "a = {0}:tool_a",
        "beforehand.policies": "allow = {0}:allow",
        "beforehand.guards": "guard = {0}:guard",
        "beforehand.tools": "add = {0}:add",
        "beforehand.adapters": "model = {0}:Model",
        "beforehand.checkpoint_policies": "mine = {0}:Mine",
        "beforehand.backends": "mine = {0}:Backend",
    }
    info = here / "site" / "offers-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "".join(f"[{group}]\n{lines.format(HERE)}\n" for group, lines in offered.items())
    )
    monkeypatch.syspath_prepend(here / "site")


@pytest.mark.usefixtures("package")
def test_what_is_installed_is_used_where_it_is_named_and_only_there() -> None:
    application = built(
        stream_middleware={"order": ["a", "checkpoint"]},
        tool_middleware={"order": ["a", "checkpoint"]},
        post_step={"order": ["audit", "checkpoint"]},
        policies={"order": ["allow"]},
        guards={"order": ["guard"]},
        tools={"enabled": ["add"]},
        model={"adapter": "model"},
        policy={"kind": "mine"},
        persistence={"kind": "mine"},
    )
    assert {name: [entry.name for entry in order.entries] for name, order in application.orders.items()} == {
        "stream_middleware": ["a", "checkpoint"],
        "tool_middleware": ["a", "checkpoint"],
        "post_step": ["audit", "checkpoint"],
        "policies": ["allow"],
        "guards": ["guard"],
    }
    assert list(application.tools.tool_set.tools) == ["add"]
    assert application.llm.adapters == ("openai", "anthropic", "local", "model")
    assert (application.persistence.kind, type(application.checkpoint)) == ("mine", things.Mine)
    unnamed = built()
    assert list(unnamed.tools.tool_set.tools) == BUILT_IN
    assert [entry.name for entry in unnamed.orders["stream_middleware"].entries] == ["checkpoint"]
    assert type(unnamed.loop.post_step[0].call).__name__ == "TokenUsage"  # a shipped name is not taken over


@pytest.mark.usefixtures("package")
def test_an_entry_point_that_is_broken_is_told_by_name_and_group() -> None:
    assert problem(post_step={"order": ["broken", "checkpoint"]}).split("\n")[0] == (
        f"entry point 'broken' of beforehand.listeners = '{HERE}:Failing': "
        "it cannot be loaded: RuntimeError: out of order"
    )


@pytest.mark.usefixtures("package")
def test_installed_names_are_among_the_known_ones() -> None:
    assert problem(model={"adapter": "modle"}) == (
        "model.adapter (argument): no adapter is named 'modle' (did you mean 'model'?); "
        "known names: anthropic, local, model, openai, script"
    )

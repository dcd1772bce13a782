"""Turns run through the built application: the lists run in their order, and listeners append what they declare."""

from __future__ import annotations

from typing import Any

import pytest
from dependency_injector import providers

from app.middleware import CHECKPOINT, Named
from containers.application import Application, Built, build, check
from containers.explain import explain_json
from containers.lifespan import Lifespan, running
from containers.settings import load_settings
from tests.support.house import types
from tests.unit.containers import things
from tests.unit.containers.things import HERE

LISTS = ("stream_middleware", "tool_middleware", "post_step")
EXTRA: dict[str, dict[str, Any]] = {
    "stream_middleware": {"extra": {"a": f"{HERE}:stream_a", "b": f"{HERE}:stream_b"}},
    "tool_middleware": {"extra": {"a": f"{HERE}:tool_a", "b": f"{HERE}:tool_b"}},
    "post_step": {"extra": {"a": f"{HERE}:step_a", "b": f"{HERE}:step_b"}, "after_checkpoint_ok": []},
}
OTHERS: dict[str, Any] = {
    "write_behind_ms": "off",
    "model": {"adapter": "mine", "name": "m"},
    "adapters": {"extra": {"mine": f"{HERE}:Model"}},
    "tools": {"extra": {"add": f"{HERE}:add"}, "enabled": ["add"]},
    "policies": {"extra": {"allow": f"{HERE}:allow"}},
    "guards": {"extra": {"guard": f"{HERE}:guard"}},
}
ORDER = ["a", CHECKPOINT, "b"]


def through_settings(monkeypatch: pytest.MonkeyPatch) -> Built:
    ordered = {name: EXTRA[name] | {"order": ORDER} for name in LISTS}
    return build(load_settings("test", **OTHERS, **ordered))


def through_environment(monkeypatch: pytest.MonkeyPatch) -> Built:
    for name in LISTS:
        monkeypatch.setenv(f"BEFOREHAND_{name.upper()}__ORDER", ",".join(ORDER))
    return build(load_settings("test", **OTHERS, **EXTRA))


def through_the_container(monkeypatch: pytest.MonkeyPatch) -> Built:
    application = Application(settings=load_settings("test", **OTHERS))
    checkpoint = application.checkpoint()
    for provider, above, call, below in (
        (application.stream_middleware, things.stream_a, checkpoint.before_request, things.stream_b),
        (application.tool_middleware, things.tool_a, checkpoint.before_tool, things.tool_b),
        (application.post_step, things.step_a, checkpoint.after_step, things.step_b),
    ):
        provider.override(providers.Object((Named("a", above), Named(CHECKPOINT, call), Named("b", below))))
    return check(application)


@pytest.mark.parametrize(
    ("make", "origin"),
    [
        (through_settings, "argument"),
        (through_environment, "BEFOREHAND_{}__ORDER"),
        (through_the_container, "set in the container"),
    ],
)
async def test_each_list_runs_from_top_to_bottom_however_its_order_was_given(
    make: Any, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ORD-04: each says, besides its name, whether everything recorded is durable when it runs."""
    things.trace.clear()
    application = make(monkeypatch)
    async with Lifespan(application):
        agent = await application.agents.create("s")
        agent.send("go")
        await agent.wait_idle()
    asked = ["stream_a False", "stream_b True"]
    told = ["step_a False", "step_b True"]
    acted = ["allow", "guard", "tool_a False", "tool_b True", "add"]
    assert things.trace == [*asked, *acted, *told, *asked, *told]
    marks = {"llm/stream": ["before", "after"], "tools/execute": ["before", "after"]}
    lists = explain_json(application)["lists"]
    for name, hook in zip(LISTS, lists, strict=True):
        assert lists[hook]["order"] == origin.format(name.upper())
        above, below = marks.get(hook, ["inside", "outside"])
        assert [(entry["name"], entry["mark"]) for entry in lists[hook]["entries"]] == [
            ("a", above),
            (CHECKPOINT, CHECKPOINT),
            ("b", below),
        ]


async def test_the_shipped_listeners_append_inside_and_outside_of_the_checkpoint() -> None:
    settings = load_settings("test", **OTHERS)
    async with running(settings) as application:
        agent = await application.agents.create("s")
        agent.send("What is one and two?\nPlease.")
        await agent.wait_idle()
        assert types(agent.session) == [
            *["inbox/accepted", "turn/start", "user/message", "step/start", "request/header"],
            *["chunk*", "assistant/message", "tool/call", "tool/result", "session/title", "step/end"],
            *["step/start", "chunk*", "assistant/message", "step/end", "turn/end{completed}"],
        ]
        (row,) = await application.sessions.list()
        assert row.title == '{"title":"What is one and two?"}'


async def test_a_log_stays_readable_when_a_listener_is_taken_out_of_the_settings() -> None:
    """RUL-04."""
    persistence = {"kind": "sqlite"}
    with_audit = {"order": ["audit", CHECKPOINT], "extra": {"audit": f"{HERE}:Audit"}, "after_checkpoint_ok": []}
    async with running(load_settings(persistence=persistence, post_step=with_audit, **OTHERS)) as application:
        agent = await application.agents.create("s")
        agent.send("go")
        await agent.wait_idle()
        before = agent.session.events
    assert [event.ignorable for event in before if event.type == "audit/seen"] == [True, True]
    async with running(load_settings(persistence=persistence, **OTHERS)) as application:
        assert "audit/seen" not in application.sessions.extensions
        session = await application.sessions.resume("s")
        assert session.events == before


async def test_a_listener_that_appends_what_it_did_not_declare_fails_the_turn() -> None:
    """RUL-05."""
    order = {"order": ["x", CHECKPOINT], "extra": {"x": f"{HERE}:Undeclared", "audit": f"{HERE}:Audit"}}
    async with running(load_settings("test", post_step=order | {"after_checkpoint_ok": []}, **OTHERS)) as application:
        agent = await application.agents.create("s")
        agent.send("go")
        await agent.wait_idle()
        assert types(agent.session)[-3:] == ["tool/result", "step/end", "turn/end{error LISTENER_FAILED}"]
        assert agent.session.events[-1].data["error"] == {
            "message": "post-step listener 'x' failed: IllegalEvent: audit/seen may not be appended in state DONE: "
            "the listener does not declare that it appends it",
            "code": "LISTENER_FAILED",
            "step": 1,
        }

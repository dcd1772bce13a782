"""What `explain` says: of the services as they were built, exactly, and on one screen."""

from __future__ import annotations

from typing import Any

import pytest
from dependency_injector import providers

from app.middleware import CHECKPOINT, Named
from containers.application import Application, build, check
from containers.explain import explain_json, explain_text
from containers.settings import Settings, load_settings
from tests.unit.containers import things
from tests.unit.containers.things import HERE

DEFAULT = """\
backend          sqlite, durable
model            none is set
policy           semantic: flushes before a request, before a top-level tool body, after a step
write-behind     what no flush has written after 200 ms is written then
final flush      after each turn/end, with every policy; a flush fails after 30000 ms

llm/stream       order: registration
  checkpoint     everything recorded so far is made durable here
                 → the adapter

tools/execute    order: registration
  policies       none
  guards         none
  checkpoint     everything recorded so far is made durable here
                 → the tool's body

agent/post-step  order: [base] of the shipped profiles.toml
  inside         usage: appends usage/total, durable when the checkpoint returns
  checkpoint     everything recorded so far is made durable here
  outside        title: appends session/title, waits for the next flush"""

TURN_END = """\
backend          memory, not durable: it ends with the process
model            none is set
policy           turn_end: no checkpoint lies inside the turn
write-behind     off: only a flush writes
final flush      after each turn/end, with every policy; a flush fails after 30000 ms

llm/stream       order: argument
                 → the adapter

tools/execute    order: registration
  policies       none
  guards         none
  nothing        checkpoint: this policy makes no checkpoint here
                 → the tool's body

agent/post-step  order: [base] of the shipped profiles.toml
  outside        usage: appends usage/total, waits for the next flush
  nothing        checkpoint: this policy makes no checkpoint here
  outside        title: appends session/title, waits for the next flush"""

FULL = """\
backend          memory, not durable: it ends with the process
model            none is set
policy           every_event: flushes before a request, before a top-level tool body, after a step,
                 after each group that the loop appends
write-behind     what no flush has written after 200 ms is written then
final flush      after each turn/end, with every policy; a flush fails after 30000 ms

llm/stream       order: argument
  before         a: may act while the log is not durable yet
  checkpoint     everything recorded so far is made durable here
  after          b: acts when the log is durable
                 → the adapter

tools/execute    order: registration
  policies       allow, order: registration
  guards         none; not in it: guard
  checkpoint     everything recorded so far is made durable here
  after          a: acts when the log is durable
                 → the tool's body

agent/post-step  order: argument
  inside         quiet
  checkpoint     everything recorded so far is made durable here
  not in it      usage, title, audit"""


def full() -> dict[str, Any]:
    return {
        "policy": {"kind": "every_event"},
        "stream_middleware": {
            "order": ["a", CHECKPOINT, "b"],
            "extra": {"a": f"{HERE}:stream_a", "b": f"{HERE}:stream_b"},
        },
        "tool_middleware": {"extra": {"a": f"{HERE}:tool_a"}},
        "post_step": {
            "order": ["quiet", CHECKPOINT],
            "extra": {"quiet": f"{HERE}:quiet", "audit": f"{HERE}:Audit"},
            "after_checkpoint_ok": [],
        },
        "policies": {"extra": {"allow": f"{HERE}:allow"}},
        "guards": {"order": [], "extra": {"guard": f"{HERE}:guard"}},
    }


def test_the_default_settings_are_explained_word_for_word() -> None:
    assert explain_text(build(load_settings())) == DEFAULT


def test_without_a_checkpoint_in_the_turn_it_says_so() -> None:
    """ORD-03, and ORD-08: the backend is not durable."""
    settings = load_settings(
        "test", policy={"kind": "turn_end"}, write_behind_ms="off", stream_middleware={"order": []}
    )
    assert explain_text(build(settings)) == TURN_END


def test_every_mark_is_explained_word_for_word() -> None:
    assert explain_text(build(load_settings("test", **full()))) == FULL


@pytest.mark.parametrize("text", [DEFAULT, TURN_END, FULL])
def test_it_fits_one_screen(text: str) -> None:
    lines = text.split("\n")
    assert (len(lines) <= 24, max(map(len, lines)) <= 100) == (True, True)


def test_a_list_without_an_order_is_said_to_be_in_that_of_registration() -> None:
    """RUL-06."""
    lists = explain_json(build(Settings(persistence={"kind": "memory"})))["lists"]
    assert lists["agent/post-step"] == {
        "order": "registration",
        "entries": [
            {"name": "usage", "appends": ["usage/total"], "mark": "inside"},
            {"name": "title", "appends": ["session/title"], "mark": "inside"},
            {"name": "checkpoint", "appends": [], "mark": "checkpoint"},
        ],
        "left_out": [],
    }


def test_what_the_services_hold_is_told_and_not_what_the_settings_say() -> None:
    """ORD-05."""
    application = Application(settings=load_settings("test"))
    policy = application.checkpoint()
    held = (Named(CHECKPOINT, policy.after_step), Named("quiet", things.quiet))
    application.post_step.override(providers.Object(held))
    application.checkpoint.override(providers.Object(policy))
    text = explain_text(check(application))
    assert application.settings().post_step.order == ("usage", "checkpoint", "title")
    assert text[text.index("agent/post-step") :].split("\n") == [
        "agent/post-step  order: set in the container",
        "  checkpoint     everything recorded so far is made durable here",
        "  outside        quiet",
    ]


def test_a_policy_and_a_backend_of_ones_own_are_told_as_what_they_are() -> None:
    settings = load_settings(
        policy={"kind": "mine", "extra": {"mine": f"{HERE}:Mine"}},
        persistence={"kind": "mine", "extra": {"mine": f"{HERE}:Backend"}},
    )
    told = explain_json(build(settings))
    assert (told["backend"], told["policy"]) == (
        {"kind": "mine", "durable": True},
        {"kind": f"{HERE}:Mine", "checkpoints": ["request", "tool"]},
    )
    assert [entry["mark"] for entry in told["lists"]["agent/post-step"]["entries"]] == ["outside", "nothing", "outside"]


def test_the_same_is_told_as_plain_values() -> None:
    told = explain_json(build(load_settings()))
    assert {key: told[key] for key in told if key != "lists"} == {
        "backend": {"kind": "sqlite", "durable": True},
        "model": {"adapter": None, "name": None},
        "policy": {"kind": "semantic", "checkpoints": ["request", "tool", "step"]},
        "write_behind_ms": 200,
        "flush_timeout_ms": 30000,
        "final_flush": "turn/end",
        "policies": {"order": "registration", "entries": [], "left_out": []},
        "guards": {"order": "registration", "entries": [], "left_out": []},
    }
    assert list(told["lists"]) == ["llm/stream", "tools/execute", "agent/post-step"]

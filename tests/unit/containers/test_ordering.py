"""The ordered lists by name: what they become, and which orders are refused."""

from typing import Any

import pytest

from app.session.errors import ConfigurationError
from containers.application import Built, build
from containers.settings import Settings, load_settings
from tests.unit.containers.things import HERE

AUDIT = {"audit": f"{HERE}:Audit"}
STREAM = {"a": f"{HERE}:stream_a", "b": f"{HERE}:stream_b"}
TOOL = {"a": f"{HERE}:tool_a", "b": f"{HERE}:tool_b"}


def names(built: Built, name: str) -> list[str]:
    return [entry.name for entry in built.orders[name].entries]


def problems(**arguments: Any) -> list[str]:
    """The lines of the error that building these settings ends in."""
    with pytest.raises(ConfigurationError) as caught:
        build(load_settings("test", **arguments))
    return str(caught.value).split("\n")


def test_a_list_without_an_order_runs_in_the_order_of_registration_and_then_the_extras() -> None:
    settings = Settings(
        stream_middleware={"extra": STREAM},
        tool_middleware={"extra": TOOL},
        post_step={"extra": {"quiet": f"{HERE}:quiet"}},
        policies={"extra": {"allow": f"{HERE}:allow"}},
        guards={"extra": {"guard": f"{HERE}:guard"}},
    )
    built = build(settings)
    assert {name: names(built, name) for name in built.orders} == {
        "stream_middleware": ["checkpoint", "a", "b"],
        "tool_middleware": ["checkpoint", "a", "b"],
        "post_step": ["usage", "title", "checkpoint", "quiet"],
        "policies": ["allow"],
        "guards": ["guard"],
    }
    assert {order.origin for order in built.orders.values()} == {"registration"}


def test_an_order_says_where_it_comes_from_and_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEFOREHAND_TOOL_MIDDLEWARE__ORDER", "b,checkpoint")
    settings = load_settings(
        tool_middleware={"extra": TOOL},
        stream_middleware={"extra": STREAM, "order": ["b", "checkpoint", "a"]},
        post_step={"extra": AUDIT},
    )
    built = build(settings)
    assert [(names(built, name), order.origin, order.left_out) for name, order in built.orders.items()] == [
        (["b", "checkpoint", "a"], "argument", ()),
        (["b", "checkpoint"], "BEFOREHAND_TOOL_MIDDLEWARE__ORDER", ("a",)),
        (["usage", "checkpoint", "title"], "[base] of the shipped profiles.toml", ("audit",)),
        ([], "registration", ()),
        ([], "registration", ()),
    ]


NEEDED = "'checkpoint' is missing, and a SemanticCheckpointPolicy needs it here"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            {"stream_middleware": {"order": ["checkpoint", "traces"], "extra": {"trace": f"{HERE}:stream_a"}}},
            ["order", "no stream middleware is named 'traces' (did you mean 'trace'?)", "checkpoint, trace"],
        ),
        ({"stream_middleware": {"order": []}}, ["order", NEEDED, "checkpoint"]),
        (
            {"tool_middleware": {"order": ["checkpoint", "checkpoint"]}},
            ["order", "'checkpoint' is there twice", "checkpoint"],
        ),
        (
            {"tool_middleware": {"order": ["x"]}},
            ["order", f"no tool middleware is named 'x'; {NEEDED}", "checkpoint"],
        ),
        (
            {"post_step": {"order": ["usge", "title", "title"]}},
            [
                "order",
                f"no post-step listener is named 'usge' (did you mean 'usage'?); 'title' is there twice; {NEEDED}",
                "checkpoint, title, usage",
            ],
        ),
        ({"policies": {"order": ["checkpoint"]}}, ["order", "no policy is named 'checkpoint'", "none"]),
        (
            {"guards": {"order": ["g", "g"], "extra": {"g": f"{HERE}:guard"}}},
            ["order", "'g' is there twice", "g"],
        ),
        (
            {"post_step": {"after_checkpoint_ok": ["title", "titel"]}},
            [
                "after_checkpoint_ok",
                "no post-step listener is named 'titel' (did you mean 'title'?)",
                "checkpoint, title, usage",
            ],
        ),
    ],
)
def test_a_faulty_order_is_refused_with_list_faults_and_known_names(arguments: dict[str, Any], told: list[str]) -> None:
    """ORD-01."""
    (name,) = arguments
    setting, faults, known = told
    assert problems(**arguments) == [f"{name}.{setting} (argument): {faults}; known names: {known}"]


def test_a_listener_that_appends_below_the_checkpoint_is_refused_unless_that_is_said_to_be_all_right() -> None:
    order = ["checkpoint", "usage", "title"]
    (told,) = problems(post_step={"order": order})
    assert "'usage' appends events and stands below 'checkpoint', where a crash can lose them" in told
    assert "'title' appends" not in told
    built = build(load_settings("test", post_step={"order": order, "after_checkpoint_ok": ["usage", "title"]}))
    assert names(built, "post_step") == order


def test_the_faults_of_all_lists_are_told_at_once() -> None:
    told = problems(stream_middleware={"order": ["x"]}, tool_middleware={"order": ["y"]}, guards={"order": ["z"]})
    assert [line.partition(" ")[0] for line in told] == [
        "stream_middleware.order",
        "tool_middleware.order",
        "guards.order",
    ]


@pytest.mark.parametrize("kind", ["semantic", "every_event"])
@pytest.mark.parametrize("name", ["stream_middleware", "tool_middleware", "post_step"])
def test_both_policies_with_checkpoints_need_their_place_in_each_list(kind: str, name: str) -> None:
    (told,) = problems(policy={"kind": kind}, **{name: {"order": []}})
    assert told.startswith(f"{name}.order (argument): 'checkpoint' is missing")


def test_turn_end_needs_no_checkpoint_in_any_list() -> None:
    none: dict[str, list[str]] = {"order": []}
    settings = load_settings(
        "test", policy={"kind": "turn_end"}, stream_middleware=none, tool_middleware=none, post_step=none
    )
    assert {name: names(build(settings), name) for name in ("stream_middleware", "tool_middleware", "post_step")} == {
        "stream_middleware": [],
        "tool_middleware": [],
        "post_step": [],
    }


def test_a_policy_of_ones_own_needs_checkpoint_only_where_it_has_a_place() -> None:
    mine = {"kind": "mine", "extra": {"mine": f"{HERE}:Mine"}}
    build(load_settings("test", policy=mine, post_step={"order": []}))
    (told,) = problems(policy=mine, tool_middleware={"order": []})
    assert told.startswith("tool_middleware.order (argument): 'checkpoint' is missing, and a Mine needs it here")


def test_a_listener_that_appends_nothing_may_stand_below_the_checkpoint() -> None:
    order = ["usage", "checkpoint", "quiet"]
    built = build(load_settings("test", post_step={"order": order, "extra": {"quiet": f"{HERE}:quiet"}}))
    assert names(built, "post_step") == order

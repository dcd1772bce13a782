"""What can be set, where it may come from, which source wins, and what is told when something is wrong."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from app.session.errors import ConfigurationError
from containers.known import Known, variable
from containers.settings import Profile, Settings, load_settings
from containers.shown import MASK, Shown, settings_with_sources
from containers.sources import SHIPPED, TABLES

CANARY = "canary-7f3a"


def problems(**arguments: Any) -> list[str]:
    """The lines of the error that these arguments end in."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(**arguments)
    return str(caught.value).split("\n")


def sources(settings: Settings) -> dict[str, tuple[Any, str]]:
    """Value and source of every setting that is not at its default."""
    return {
        shown.name: (shown.value, shown.source)
        for shown in settings_with_sources(settings)
        if shown.source != "default"
    }


def set_variables(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)


# ------------------------------------------------------------------------------------------------ what holds


def test_with_nothing_said_the_shipped_dev_profile_holds() -> None:
    settings = load_settings()
    assert (settings.profile, settings.persistence.kind, settings.persistence.path, settings.require_durable) == (
        "dev",
        "sqlite",
        Path(".beforehand/sessions.db"),
        False,
    )
    assert (settings.policy.kind, settings.write_behind_ms, settings.flush_timeout_ms) == ("semantic", 200, 30_000)
    assert settings.post_step.order == ("usage", "checkpoint", "title")
    assert settings.post_step.after_checkpoint_ok == ("title",)


@pytest.mark.parametrize(
    ("profile", "kind", "require_durable"),
    [("dev", "sqlite", False), ("test", "memory", False), ("prod", "postgres", True)],
)
def test_a_profile_lays_its_table_over_the_base(profile: str, kind: str, require_durable: bool) -> None:
    settings = load_settings(profile)
    assert (settings.profile, settings.persistence.kind, settings.require_durable) == (profile, kind, require_durable)


def test_the_tables_of_the_files_are_the_profiles_that_there_are() -> None:
    assert (*TABLES,) == ("base", *get_args(Profile))
    assert SHIPPED.exists()


def test_settings_made_in_code_read_neither_environment_nor_files(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEFOREHAND_PERSISTENCE__KIND", "memory")
    (here / "beforehand.toml").write_text("[base]\nowner = 'file'\n")
    settings = Settings(lease_s=20, post_step={"order": ["checkpoint"]})
    assert (settings.persistence.kind, settings.owner, settings.post_step.order) == ("sqlite", None, ("checkpoint",))
    assert sources(settings) == {"lease_s": (20.0, "argument"), "post_step.order": (["checkpoint"], "argument")}


def test_settings_are_frozen() -> None:
    settings = load_settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.lease_s = 3  # type: ignore[misc]  # that is the point
    with pytest.raises(ValueError, match="frozen"):
        settings.policy.kind = "turn_end"  # type: ignore[misc]


def test_every_setting_says_what_it_takes() -> None:
    assert [name for name, takes in Known(Settings).takes.items() if not takes] == []


# ------------------------------------------------------------------------------------------------ where from


def test_the_environment_sets_values_lists_tables_and_off(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "BEFOREHAND_POST_STEP__ORDER": "usage, checkpoint ,title",
        "BEFOREHAND_POST_STEP__EXTRA__AUDIT": "mypkg.audit:Audit",
        "BEFOREHAND_PERSISTENCE__KIND": "memory",
        "BEFOREHAND_WRITE_BEHIND_MS": "off",
        "BEFOREHAND_TOOLS__ENABLED": "",
        "BEFOREHAND_MODEL__STOP": '["a,b", "c"]',
        "BEFOREHAND_MODEL__TEMPERATURE": "0.5",
        "BEFOREHAND_TOOL_TIMEOUT_S": "2",
        "BEFOREHAND_REQUIRE_DURABLE": "false",
        "beforehand_owner": "me",
    }
    set_variables(monkeypatch, variables)
    settings = load_settings()
    assert settings.write_behind_ms is None
    found = sources(settings)
    assert {name: value for name, (value, source) in found.items() if source == variable(name)} == {
        "post_step.order": ["usage", "checkpoint", "title"],
        "post_step.extra.audit": "mypkg.audit:Audit",
        "persistence.kind": "memory",
        "write_behind_ms": None,
        "tools.enabled": [],
        "model.stop": ["a,b", "c"],
        "model.temperature": 0.5,
        "tool_timeout_s": 2.0,
        "require_durable": False,
        "owner": "me",
    }
    assert len(found) == len(variables) + 1  # and post_step.after_checkpoint_ok, of the base table


def test_each_source_wins_over_those_after_it_and_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["owner", "lease_s", "flush_timeout_ms", "max_batch_events", "max_batch_bytes", "max_depth"]
    (here / "beforehand.toml").write_text(
        "[base]\n" + "".join(f"{name} = {5}\n" for name in names[1:5]) + "[test]\n"
        "lease_s = 40\nflush_timeout_ms = 40\nmax_batch_events = 40\n[prod]\nlease_s = 1\n"
    )
    secrets = here / "secrets"
    secrets.mkdir()
    (secrets / "BEFOREHAND_LEASE_S").write_text("30\n")
    (secrets / "beforehand_flush_timeout_ms").write_text("30")
    (secrets / "somebody_elses").write_text("x")
    set_variables(monkeypatch, {"BEFOREHAND_LEASE_S": "20", "BEFOREHAND_SECRETS_DIR": "secrets"})
    settings = load_settings("test", owner="me")
    assert sources(settings) == {
        "profile": ("test", "argument"),
        "owner": ("me", "argument"),
        "secrets_dir": ("secrets", "BEFOREHAND_SECRETS_DIR"),
        "lease_s": (20.0, "BEFOREHAND_LEASE_S"),
        "flush_timeout_ms": (MASK, "secret file secrets/BEFOREHAND_FLUSH_TIMEOUT_MS"),
        "max_batch_events": (40, "[test] of beforehand.toml"),
        "max_batch_bytes": (5, "[base] of beforehand.toml"),
        "persistence.kind": ("memory", "[test] of the shipped profiles.toml"),
        "post_step.order": (["usage", "checkpoint", "title"], "[base] of the shipped profiles.toml"),
        "post_step.after_checkpoint_ok": (["title"], "[base] of the shipped profiles.toml"),
    }
    assert settings.flush_timeout_ms == 30
    assert settings.max_depth == 200_000


def test_tables_are_merged_and_not_replaced(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "beforehand.toml").write_text("[base.persistence.extra]\na = 'a:A'\nb = 'b:B'\n")
    monkeypatch.setenv("BEFOREHAND_PERSISTENCE__EXTRA__B", "env:B")
    settings = load_settings(persistence={"extra": {"c": "c:C"}})
    assert settings.persistence.extra == {"a": "a:A", "b": "env:B", "c": "c:C"}
    assert settings.persistence.kind == "sqlite"


def test_the_profile_may_come_from_the_environment_or_the_base_table(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "beforehand.toml").write_text("[base]\nprofile = 'prod'\n")
    assert (load_settings().profile, load_settings().require_durable) == ("prod", True)
    monkeypatch.setenv("BEFOREHAND_PROFILE", "test")
    assert (load_settings().profile, load_settings().persistence.kind) == ("test", "memory")
    assert load_settings("dev").persistence.kind == "sqlite"


def test_a_file_of_another_name_takes_the_place_of_the_one_here(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "beforehand.toml").write_text("[base]\nowner = 'here'\nlease_s = 20\n")
    (here / "other.toml").write_text("[base]\nowner = 'other'\n")
    monkeypatch.setenv("BEFOREHAND_CONFIG", "other.toml")
    assert sources(load_settings())["owner"] == ("other", "[base] of other.toml")
    assert load_settings().lease_s == 30


def test_variables_of_the_tests_themselves_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEFOREHAND_TEST_PG", "local")
    assert load_settings() == load_settings()


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("value", [0, 1.5, -1, 60_001, True, "soon"])
def test_a_write_behind_window_out_of_range_stops_the_start(value: object) -> None:
    """WB-11."""
    assert problems(write_behind_ms=value) == ["write_behind_ms (argument): takes an integer from 1 to 60000, or off"]


@pytest.mark.parametrize(("value", "kept"), [(1, 1), (60_000, 60_000), ("off", None), (None, None), ("250", 250)])
def test_a_write_behind_window_in_range_is_taken(value: object, kept: int | None) -> None:
    assert load_settings(write_behind_ms=value).write_behind_ms == kept


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_limit_of_parallel_tools_below_one_stops_the_start(value: object) -> None:
    """SCH-06."""
    assert problems(max_parallel_tools=value) == ["max_parallel_tools (argument): takes an integer from 1"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"profile": "production"}, "profile (argument): takes one of dev, test, prod"),
        ({"lease_s": float("nan")}, "lease_s (argument): takes a number of seconds above 0"),
        ({"shutdown_timeout_s": float("inf")}, "shutdown_timeout_s (argument): takes a number of seconds above 0"),
        ({"tool_timeout_s": 0}, "tool_timeout_s (argument): takes a number of seconds above 0"),
        ({"persistence": 3}, "persistence (argument): is a table of settings; did you mean persistence.tls?"),
        ({"post_step": {"order": 3}}, "post_step.order (argument): takes names, separated by commas or as a list"),
        (
            {"post_step": {"extra": {"a": 3}}},
            "post_step.extra.a (argument): takes a table, each name = 'package.module:attribute'",
        ),
        ({"lease_s": 10, "lease_margin_s": 5}, "lease_margin_s: must be below half of lease_s, which is 10"),
        (
            {"max_event_bytes": 100, "max_tool_result_bytes": 100},
            "max_tool_result_bytes: must be below max_event_bytes, which is 100",
        ),
        ({"polcy": 1}, "polcy (argument): names no setting; did you mean policy.kind?"),
        ({"post_step": {"ordr": ["a"]}}, "post_step.ordr (argument): names no setting; did you mean post_step.order?"),
    ],
)
def test_a_wrong_value_is_told_with_its_setting_its_source_and_what_it_takes(
    arguments: dict[str, Any], told: str
) -> None:
    assert problems(**arguments) == [told]


def test_a_misspelt_variable_stops_the_start_with_the_nearest_known_name(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(
        monkeypatch,
        {
            "BEFOREHAND_PERSISTENCE_KIND": CANARY,
            "BEFOREHAND_PERSISTENCE__KINDS": CANARY,
            "BEFOREHAND_POLICY": CANARY,
            "BEFOREHAND_POST_STEP__EXTRA": CANARY,
            "BEFOREHAND_CONFIGS": CANARY,
            "beforehand_profil": CANARY,
        },
    )
    told = problems()
    assert sorted(told) == [
        "BEFOREHAND_CONFIGS: names no setting; did you mean BEFOREHAND_CONFIG?",
        "BEFOREHAND_PERSISTENCE_KIND: names no setting; did you mean BEFOREHAND_PERSISTENCE__KIND?",
        "BEFOREHAND_PERSISTENCE__KINDS: names no setting; did you mean BEFOREHAND_PERSISTENCE__KIND?",
        "BEFOREHAND_POLICY: names no setting; did you mean BEFOREHAND_POLICY__KIND?",
        "BEFOREHAND_POST_STEP__EXTRA: names no setting; did you mean BEFOREHAND_POST_STEP__EXTRA__NAME?",
        "BEFOREHAND_PROFIL: names no setting; did you mean BEFOREHAND_PROFILE?",
    ]
    assert CANARY not in "\n".join(told)


def test_every_problem_is_told_at_once_and_no_value_with_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "beforehand.toml").write_text(f"[base]\nlease_s = '{CANARY}'\n[staging]\nowner = '{CANARY}'\n")
    (here / "secrets").mkdir()
    (here / "secrets" / "BEFOREHAND_FLUSH_TIMEOUT_MS").write_text(CANARY)
    (here / "secrets" / "BEFOREHAND_DSN").write_text(CANARY)
    set_variables(monkeypatch, {"BEFOREHAND_MAX_DEPTH": CANARY, "BEFOREHAND_PROFIL": CANARY})
    told = problems(profile=CANARY, secrets_dir="secrets", persistence={"options": CANARY})
    assert sorted(told) == [
        "BEFOREHAND_PROFIL: names no setting; did you mean BEFOREHAND_PROFILE?",
        "beforehand.toml: 'staging' is no profile's table; there are [base], [dev], [test], [prod]",
        "flush_timeout_ms (secret file secrets/BEFOREHAND_FLUSH_TIMEOUT_MS): takes an integer from 1",
        "lease_s ([base] of beforehand.toml): takes a number of seconds above 0",
        "max_depth (BEFOREHAND_MAX_DEPTH): takes an integer from 1",
        "persistence.options (argument): takes a table",
        "profile (argument): takes one of dev, test, prod",
        "secret file BEFOREHAND_DSN: names no setting; did you mean BEFOREHAND_OWNER?",
    ]


def test_a_secret_is_never_shown(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "secrets").mkdir()
    (here / "secrets" / "BEFOREHAND_PERSISTENCE__OPTIONS__DSN").write_text(CANARY)
    (here / "secrets" / "BEFOREHAND_OWNER").write_text(CANARY)
    monkeypatch.setenv("BEFOREHAND_PERSISTENCE__OPTIONS__PASSWORD", CANARY)
    settings = load_settings(secrets_dir=here / "secrets")
    assert settings.persistence.options == {"dsn": CANARY, "password": CANARY}
    assert (settings.owner, sources(settings)["owner"][0]) == (CANARY, MASK)
    shown = settings_with_sources(settings)
    assert Shown("persistence.options.password", MASK, "BEFOREHAND_PERSISTENCE__OPTIONS__PASSWORD") in shown
    assert CANARY not in f"{settings!r} {settings} {settings.persistence!r} {settings.persistence} {shown!r}"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[base\n", "beforehand.toml: is no TOML: "),
        (b"owner = 1\n", "beforehand.toml: 'owner' is no profile's table; there are [base], [dev], [test], [prod]"),
        (b"[base]\nowner = '\xff'\n", "beforehand.toml: is no TOML: it is not UTF-8"),
        (b"[dev]\nprofile = 'prod'\n", "beforehand.toml: [dev] cannot choose the profile; [base] can"),
        (b"[base]\nownr = 'me'\n", "ownr ([base] of beforehand.toml): names no setting; did you mean owner?"),
    ],
)
def test_a_file_that_is_wrong_is_told_by_name(here: Path, content: bytes, told: str) -> None:
    (here / "beforehand.toml").write_bytes(content)
    (line,) = problems()
    assert line.startswith(told)


def test_a_file_that_is_named_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEFOREHAND_CONFIG", "gone.toml")
    assert problems() == ["gone.toml: cannot be read: No such file or directory"]


def test_a_secrets_directory_has_to_be_there() -> None:
    told = "secrets_dir: cannot be read (No such file or directory); takes the path of a directory of text files"
    assert problems(secrets_dir="gone") == [told]


def test_reading_settings_changes_nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEFOREHAND_OWNER", "me")
    before = dict(os.environ)
    load_settings()
    assert dict(os.environ) == before

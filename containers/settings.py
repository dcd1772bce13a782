"""What can be set, with which values, and what holds when nothing is said; read once, then frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from containers.fields import Count, CountOrZero, Names, Number, Paths, Seconds, Text, Window
from containers.known import PREFIX, SECRET, Known
from containers.sources import read

Profile: TypeAlias = Literal["dev", "test", "prod"]
BUILT_IN_TOOLS = ("list_files", "read_file", "search_files", "write_file", "append_file", "run_command")
UNLESS_NAMED = BUILT_IN_TOOLS[:-1]
"""The built-in tools that an agent has when `tools.enabled` is not set: running commands has to be asked for."""


class Section(BaseModel):
    """A table of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Persistence(Section):
    """`path` is sqlite's, `directory` jsonl's, `dsn` and what follows it postgres's.

    `options` are the keyword arguments of a backend of one's own; they may hold secrets and are never shown.
    """

    kind: Text = "sqlite"
    path: Path = Field(Path(".beforehand/sessions.db"), description="the path of a file")
    directory: Path = Field(Path(".beforehand/sessions"), description="the path of a directory")
    dsn: SecretStr | None = Field(None, description="postgresql://user:password@host,host/database")
    schema_name: Text = "beforehand"
    pool_size: Count = 8
    pool_timeout_ms: Count = 5_000
    statement_timeout_ms: Count = 10_000
    connect_timeout_ms: Count = 3_000
    statement_cache_size: CountOrZero = 100
    writers: Count = 2
    group_max_bytes: Count = 1024 * 1024
    migrate_on_start: bool = Field(True, description="true or false")
    standby: Literal["on", "remote_apply"] | None = Field(None, description="on or remote_apply")
    tls: Literal["disable", "require", "verify-ca", "verify-full"] | None = Field(
        None, description="one of disable, require, verify-ca, verify-full"
    )
    options: dict[str, Any] = Field({}, repr=False, description="a table")
    extra: Paths = {}


class Policy(Section):
    kind: Text = "semantic"
    extra: Paths = {}


class OrderedList(Section):
    order: Names | None = None
    extra: Paths = {}


class PostStep(OrderedList):
    after_checkpoint_ok: Names = ()


class Tools(Section):
    """`enabled` not set: those of UNLESS_NAMED, and every one of `extra`."""

    enabled: Names | None = None
    extra: Paths = {}


class Adapters(Section):
    extra: Paths = {}


class Retry(Section):
    max: CountOrZero = 2
    base_ms: CountOrZero = 500
    cap_ms: CountOrZero = 20_000


class Model(Section):
    """`script` is the file that the adapter named `script` follows."""

    adapter: Text | None = None
    name: Text | None = None
    temperature: Number | None = None
    max_tokens: Count | None = None
    stop: Names = ()
    script: Path | None = Field(None, description="the path of a file")


class Settings(BaseSettings):
    """Every setting. Made with arguments it reads nothing; `load_settings` also looks into environment and files."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        enable_decoding=False,  # a list in the environment is `a,b`; see Names
    )

    profile: Profile = Field("dev", description="one of dev, test, prod")
    secrets_dir: Path | None = Field(None, description="the path of a directory")

    persistence: Persistence = Persistence()
    require_durable: bool = Field(False, description="true or false")
    policy: Policy = Policy()
    write_behind_ms: Window = 200
    flush_timeout_ms: Count = 30_000
    shutdown_timeout_s: Seconds = 30.0
    owner: Text | None = None
    lease_s: Seconds = 30.0
    lease_margin_s: Seconds = 5.0

    stream_middleware: OrderedList = OrderedList()
    tool_middleware: OrderedList = OrderedList()
    post_step: PostStep = PostStep()
    policies: OrderedList = OrderedList()
    guards: OrderedList = OrderedList()
    extension_events: dict[str, bool] = Field(
        {}, description="a table, each 'name/word' = true or false: whether a reader that does not know it may skip it"
    )

    model: Model = Model()
    system: str | None = Field(None, description="a text")
    adapters: Adapters = Adapters()
    retry: Retry = Retry()
    workspace: Path = Field(Path(), description="the path of a directory")
    tools: Tools = Tools()
    max_parallel_tools: Count = 10
    tool_timeout_s: Seconds | None = None
    reconcile_timeout_s: Seconds = 10.0

    max_event_bytes: Count = 16 * 1024 * 1024
    max_session_events: Count = 1_000_000
    max_tool_result_bytes: Count = 4 * 1024 * 1024
    max_batch_events: Count = 5_000
    max_batch_bytes: Count = 4 * 1024 * 1024
    max_integer_digits: Count = 20_000
    max_depth: Count = 200_000

    _origins: Mapping[str, str] = PrivateAttr(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only the arguments: whoever makes Settings in code gets what he says, whatever the environment holds."""
        return (init_settings,)

    @model_validator(mode="after")
    def _fit_together(self) -> Settings:
        problems = []
        if self.lease_margin_s >= self.lease_s / 2:
            problems.append(f"lease_margin_s: must be below half of lease_s, which is {self.lease_s:g}")
        if self.max_tool_result_bytes >= self.max_event_bytes:
            problems.append(f"max_tool_result_bytes: must be below max_event_bytes, which is {self.max_event_bytes}")
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def __repr__(self) -> str:
        return f"<Settings {self.profile}: {self.persistence.kind}, {self.policy.kind}>"

    __str__ = __repr__

    def remember(self, origins: Mapping[str, str]) -> None:
        """Where each value that was read comes from, by dotted names."""
        self._origins = MappingProxyType(dict(origins))

    def source_of(self, name: str) -> str:
        """Where the value of a setting (`post_step.order`) comes from."""
        return self._origins.get(name) or ("argument" if _is_set(self, name) else "default")


def load_settings(profile: str | None = None, **arguments: Any) -> Settings:
    """Read the settings, now and once. An argument may be a table: `load_settings(model={"adapter": "script"})`.

    Arguments come first, then environment, secrets directory, profile table, base table, defaults. Raises
    ConfigurationError with a line for each problem: the setting, where it was set, and what it takes.
    """
    given = arguments if profile is None else {"profile": profile, **arguments}
    settings, origins = read(Settings, given)
    settings.remember(origins)
    return settings


@dataclass(frozen=True, slots=True)
class Shown:
    """A setting by its dotted name, its value as JSON has it, or MASK, and where the value comes from."""

    name: str
    value: Any
    source: str


MASK = "**********"


def settings_with_sources(settings: Settings) -> list[Shown]:
    """Every setting with its value in force. What may be secret is masked; each entry of a table stands alone."""
    shown = []
    for name in Known(Settings).takes:
        value = _value(settings, name)
        entries = {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {}
        for entry, plain in (entries or {name: value}).items():
            source = settings.source_of(entry)
            is_secret = (
                entry.startswith("persistence.options.") or source.startswith(SECRET) or isinstance(plain, SecretStr)
            )
            shown.append(Shown(entry, MASK if is_secret else _as_json(plain), source))
    return shown


def _value(settings: Settings, name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _is_set(settings: Settings, name: str) -> bool:
    """Whether whoever made these settings in code said something of this one."""
    section: Any = settings
    for part in name.split("."):
        if isinstance(section, dict):
            return part in section
        if part not in section.model_fields_set:
            return False
        section = getattr(section, part)
    return True


def _as_json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value

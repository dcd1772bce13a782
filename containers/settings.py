"""What can be set, with which values, and what holds when nothing is said; read once, then frozen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from pydantic import Field, PrivateAttr, SecretStr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from containers.fields import (
    Address,
    Count,
    CountOrZero,
    Fraction,
    Names,
    Number,
    Paths,
    Seconds,
    Section,
    Text,
    Window,
)
from containers.known import PREFIX
from containers.sources import read
from containers.tool_settings import Tools

Profile: TypeAlias = Literal["dev", "test", "prod"]


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
    extra: Paths = Field({})


class Policy(Section):
    kind: Text = "semantic"
    extra: Paths = Field({})


class OrderedList(Section):
    order: Names | None = None
    extra: Paths = Field({})


class PostStep(OrderedList):
    after_checkpoint_ok: Names = ()


class Adapters(Section):
    extra: Paths = Field({})


class Retry(Section):
    max: CountOrZero = 2
    base_ms: CountOrZero = 500
    cap_ms: CountOrZero = 20_000
    jitter: Fraction = 0.0
    budget_ms: CountOrZero | None = None


class Model(Section):
    """`adapter` is a name of `models`, or of another adapter; `script` the file that the one named `script` follows."""

    adapter: Text | None = None
    name: Text | None = None
    temperature: Number | None = None
    max_tokens: Count | None = None
    stop: Names = ()
    script: Path | None = Field(None, description="the path of a file")


class NamedModel(Section):
    """A server that answers, and its model. `adapter` not set: the table's own name is that of the adapter.

    `options` are keys of the request's body that are the vendor's own. Without `name` one has to be asked for.
    """

    adapter: Literal["openai", "anthropic"] | None = Field(None, description="openai or anthropic")
    name: Text | None = None
    base_url: Address | None = None
    api_key: SecretStr | None = Field(None, description="a key")
    headers: dict[str, SecretStr] = Field({}, description="a table, each name = a text")
    options: dict[str, Any] = Field({}, description="a table")
    temperature: Number | None = None
    max_tokens: Count | None = None
    stop: Names = ()
    connect_timeout_s: Seconds = 10.0
    timeout_s: Seconds = 300.0


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
    repeat_unknown: Literal["allow", "refuse"] = Field("allow", description="allow or refuse")
    extension_events: dict[str, bool] = Field(
        {}, description="a table, each 'name/word' = true or false: whether a reader that does not know it may skip it"
    )

    model: Model = Model()
    models: dict[str, NamedModel] = Field({}, description="a table of settings for each name")
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


def _is_set(settings: Settings, name: str) -> bool:
    """Whether whoever made these settings in code said something of this one."""
    section: Any = settings
    for part in name.split("."):
        is_table = isinstance(section, dict)
        if part not in (section if is_table else section.model_fields_set):
            return False
        section = section[part] if is_table else getattr(section, part)
    return True

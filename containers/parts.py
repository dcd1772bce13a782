"""What settings choose or name, apart from orders: the backend and the policy, adapters, tools, extension events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from app.agent.step import PostStepListener
from app.agent.turn import ModelConfig
from app.llm.scripted import ScriptedAdapter
from app.llm.types import Adapter
from app.session.drain import DrainLimits
from app.session.errors import ConfigurationError
from app.session.events import CATALOGUE, ExtensionType
from app.session.persistence import SessionPersistence
from app.session.session import LogLimits
from app.session.store import SessionStore
from app.session.values import ValueLimits
from app.tools.builtin import workspace_tools
from app.tools.types import Tool
from containers import kinds
from containers.extensions import Catalogue, check_free, no_such
from containers.settings import UNLESS_NAMED, Persistence, Policy, Settings
from policy.checkpoint import CheckpointPolicy

BACKENDS = ("postgres", "sqlite", "jsonl", "memory")
POLICIES = ("semantic", "turn_end", "every_event")
SCRIPT = "script"

_EXTENSION_NAME = re.compile(r"[^\s/]+/[^\s/]+")


def backend_branch(persistence: Persistence) -> str:
    """The name of the selector's branch that makes the backend: its kind, or `extra` for one that is not shipped."""
    check_free("persistence", persistence.extra, BACKENDS)
    if persistence.kind not in BACKENDS:
        return "extra"
    if persistence.options:
        raise ConfigurationError(f"persistence.options: {persistence.kind!r} has none; they are for persistence.extra")
    return persistence.kind


def postgres(persistence: Persistence) -> SessionPersistence:
    """The Postgres store, whose driver is imported only where it is used. Raises ConfigurationError."""
    from persistence.postgres import PostgresPersistence

    if persistence.dsn is None:
        raise ConfigurationError("persistence.dsn: not set; postgres needs it: postgresql://user@host/database")
    return PostgresPersistence(
        persistence.dsn.get_secret_value(),
        schema=persistence.schema_name,
        pool_size=persistence.pool_size,
        pool_timeout_ms=persistence.pool_timeout_ms,
        statement_timeout_ms=persistence.statement_timeout_ms,
        connect_timeout_ms=persistence.connect_timeout_ms,
        statement_cache_size=persistence.statement_cache_size,
        writers=persistence.writers,
        group_max_bytes=persistence.group_max_bytes,
        migrate_on_start=persistence.migrate_on_start,
        standby=persistence.standby,
        tls=persistence.tls,
    )


def extra_backend(persistence: Persistence) -> SessionPersistence:
    """The backend that is named in `extra`, or installed. Raises ConfigurationError."""
    return kinds.backend(persistence.options).choose(persistence.kind, persistence.extra, BACKENDS)


def policy_branch(policy: Policy) -> str:
    """As `backend_branch`, for the checkpoint policy."""
    check_free("policy", policy.extra, POLICIES)
    return policy.kind if policy.kind in POLICIES else "extra"


def extra_policy(policy: Policy, sessions: SessionStore) -> CheckpointPolicy:
    """The checkpoint policy that is named in `extra`, or installed. Raises ConfigurationError."""
    return kinds.checkpoint_policy(sessions).choose(policy.kind, policy.extra, POLICIES)


def log_limits(settings: Settings) -> LogLimits:
    """What `append` refuses."""
    values = ValueLimits(settings.max_depth, settings.max_integer_digits)
    return LogLimits(settings.max_event_bytes, settings.max_session_events, values)


def drain_limits(settings: Settings) -> DrainLimits:
    """How events reach the store."""
    return DrainLimits(
        settings.max_batch_events, settings.max_batch_bytes, settings.write_behind_ms, settings.flush_timeout_ms
    )


def adapters(settings: Settings) -> tuple[Adapter, ...]:
    """The scripted adapter if there is a script, whose file is read now; every extra; the one that the model asks for.

    Raises ConfigurationError.
    """
    model = settings.model
    check_free("adapters", settings.adapters.extra, [SCRIPT])
    shipped = {} if model.script is None else {SCRIPT: ScriptedAdapter.from_file(model.script, name=SCRIPT)}
    wanted = [] if model.adapter is None else [model.adapter]
    catalogue: Catalogue[Adapter] = Catalogue(kinds.ADAPTER, shipped, settings.adapters.extra, wanted)
    if model.adapter == SCRIPT and model.script is None:
        raise ConfigurationError(f"model.script: the adapter {SCRIPT!r} needs it, the path of a file")
    if missing := [name for name in wanted if name not in catalogue.there]:
        known = sorted(catalogue.known() | {SCRIPT})
        told = f"model.adapter ({settings.source_of('model.adapter')}): {no_such('adapter', missing[0], known)}"
        raise ConfigurationError(f"{told}; known names: {', '.join(known)}")
    return tuple(catalogue.there.values())


def model_config(settings: Settings) -> ModelConfig:
    """What agents ask their models with."""
    model = settings.model
    return ModelConfig(model.adapter, model.name, model.temperature, model.max_tokens, model.stop, settings.system)


def tools(settings: Settings) -> tuple[Tool, ...]:
    """The tools of `tools.enabled`, in that order. Raises ConfigurationError, one line with every fault."""
    built_in = {tool.name: tool for tool in workspace_tools(Path(settings.workspace))}
    enabled = settings.tools.enabled
    catalogue: Catalogue[Tool] = Catalogue(kinds.TOOL, built_in, settings.tools.extra, enabled)
    if enabled is None:
        enabled = (*UNLESS_NAMED, *catalogue.extra)
    unknown = [name for name in dict.fromkeys(enabled) if name not in catalogue.there]
    twice = [name for name in dict.fromkeys(enabled) if enabled.count(name) > 1]
    if unknown or twice:
        known = sorted(catalogue.known())
        faults = [no_such("tool", name, known) for name in unknown] + [f"{name!r} is there twice" for name in twice]
        told = f"tools.enabled ({settings.source_of('tools.enabled')}): {'; '.join(faults)}"
        raise ConfigurationError(f"{told}; known names: {', '.join(known)}")
    return tuple(catalogue.there[name] for name in enabled)


def extension_types(settings: Settings, listeners: Mapping[str, PostStepListener]) -> tuple[ExtensionType, ...]:
    """What settings declare, and what every listener that there is appends, whether it runs or not.

    Raises ConfigurationError for a name of the wrong form, a built-in one, and one that is declared in two ways.
    """
    declared = [ExtensionType(name, ignorable) for name, ignorable in settings.extension_events.items()]
    declared += [kind for listener in listeners.values() for kind in getattr(listener, "appends", ())]
    by_name: dict[str, ExtensionType] = {}
    faults = []
    for kind in declared:
        if not _EXTENSION_NAME.fullmatch(kind.name) or kind.name in CATALOGUE:
            faults.append(f"{kind.name!r} is no name for one: it takes name/word, and none that is built in")
        if by_name.setdefault(kind.name, kind) != kind:
            faults.append(f"{kind.name!r} is declared both ignorable and not")
    if faults:
        raise ConfigurationError(f"extension events: {'; '.join(dict.fromkeys(faults))}")
    return tuple(by_name.values())

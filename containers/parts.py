"""What settings choose or name, apart from orders: the backend and the policy, adapters, extension events."""

from __future__ import annotations

from collections.abc import Mapping

from app.agent.step import PostStepListener
from app.llm.scripted import ScriptedAdapter
from app.llm.types import Adapter
from app.session.drain import DrainLimits
from app.session.errors import ConfigurationError
from app.session.events import ExtensionType
from app.session.persistence import SessionPersistence
from app.session.session import LogLimits
from app.session.store import SessionStore
from app.session.values import ValueLimits
from app.tools.types import Guard
from containers import kinds
from containers.extensions import Catalogue, check_free, no_such
from containers.models import vendor_adapters
from containers.settings import Persistence, Policy, Settings
from policy.checkpoint import CheckpointPolicy
from policy.guard import REPEAT_UNKNOWN, refuse_repeat_of_unknown

BACKENDS = ("postgres", "sqlite", "jsonl", "memory")
POLICIES = ("semantic", "turn_end", "every_event")
SCRIPT = "script"


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
    """One for each named model; the scripted one if there is a script, whose file is read now; every extra; and of what
    is installed the one that the model asks for. Raises ConfigurationError.
    """
    model = settings.model
    shipped: dict[str, Adapter] = {**vendor_adapters(settings)}
    check_free("adapters", settings.adapters.extra, [SCRIPT, *shipped])
    if model.script is not None:
        shipped[SCRIPT] = ScriptedAdapter.from_file(model.script, name=SCRIPT)
    wanted = [] if model.adapter is None else [model.adapter]
    catalogue: Catalogue[Adapter] = Catalogue(kinds.ADAPTER, shipped, settings.adapters.extra, wanted)
    if model.adapter == SCRIPT and model.script is None:
        raise ConfigurationError(f"model.script: the adapter {SCRIPT!r} needs it, the path of a file")
    if missing := [name for name in wanted if name not in catalogue.there]:
        known = sorted(catalogue.known() | {SCRIPT})
        told = f"model.adapter ({settings.source_of('model.adapter')}): {no_such('adapter', missing[0], known)}"
        raise ConfigurationError(f"{told}; known names: {', '.join(known)}")
    return tuple(catalogue.there.values())


def guards(settings: Settings) -> dict[str, Guard]:
    """The guards that are shipped, by name: the one there is, if it is asked for."""
    return {REPEAT_UNKNOWN: refuse_repeat_of_unknown} if settings.repeat_unknown == "refuse" else {}


def extension_types(settings: Settings, listeners: Mapping[str, PostStepListener]) -> list[ExtensionType]:
    """What settings declare, and what every listener that there is appends, whether it runs or not."""
    declared = [ExtensionType(name, ignorable) for name, ignorable in settings.extension_events.items()]
    return declared + [kind for listener in listeners.values() for kind in getattr(listener, "appends", ())]

"""The one place where everything is put together: which parts, with which settings, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dependency_injector import containers, providers

from app.agent.agents import Agents
from app.agent.listeners import SessionTitle, TokenUsage
from app.agent.loop import AgentLoop
from app.agent.step import PostStepListener
from app.llm.service import LlmService
from app.llm.types import Adapter, StreamMiddleware
from app.middleware import CHECKPOINT
from app.session.errors import ConfigurationError
from app.session.ownership import this_owner
from app.session.persistence import SessionPersistence
from app.session.store import SessionStore
from app.tools.service import ToolService
from app.tools.types import Guard, ToolMiddleware, ToolPolicy
from containers import kinds, parts, tool_parts
from containers.extensions import Catalogue
from containers.models import model_config
from containers.ordering import PLACES, Order, arrange, as_held, find_faults
from containers.settings import Settings
from persistence.jsonl import JsonlPersistence
from persistence.memory import MemoryPersistence
from persistence.sqlite import SqlitePersistence
from policy.checkpoint import (
    CheckpointPolicy,
    EveryEventCheckpointPolicy,
    SemanticCheckpointPolicy,
    TurnEndCheckpointPolicy,
)
from policy.retry import BackoffRetryPolicy


class Application(containers.DeclarativeContainer):
    """The object graph. Building it does no I/O, except that a model's script is read; `check` builds all of it.

    Override a provider of an instance before anything is built from it: what is built once stays.
    """

    settings = providers.Dependency(instance_of=Settings)

    # ---------------------------------------------------------------------------------------- where, and for whom

    persistence: providers.Provider[SessionPersistence] = providers.Selector(
        providers.Callable(parts.backend_branch, settings.provided.persistence),
        postgres=providers.Singleton(parts.postgres, settings.provided.persistence),
        sqlite=providers.Singleton(SqlitePersistence, settings.provided.persistence.path),
        jsonl=providers.Singleton(JsonlPersistence, settings.provided.persistence.directory),
        memory=providers.Singleton(MemoryPersistence),
        extra=providers.Singleton(parts.extra_backend, settings.provided.persistence),
    )
    listeners: providers.Provider[Catalogue[PostStepListener]] = providers.Singleton(
        Catalogue,
        kinds.LISTENER,
        shipped=providers.Dict(usage=providers.Singleton(TokenUsage), title=providers.Singleton(SessionTitle)),
        extra=settings.provided.post_step.extra,
        wanted=settings.provided.post_step.order,
    )
    tool_set = providers.Singleton(tool_parts.tool_set, settings)
    sessions = providers.Singleton(
        SessionStore,
        persistence,
        providers.Callable(this_owner, settings.provided.owner, settings.provided.lease_s),
        extensions=providers.Callable(parts.extension_types, settings, listeners.provided.there),
        log_limits=providers.Callable(parts.log_limits, settings),
        drain_limits=providers.Callable(parts.drain_limits, settings),
        lease_margin_s=settings.provided.lease_margin_s,
        reconcile=tool_set,
    )

    # ---------------------------------------------------------------------------------------- when

    checkpoint: providers.Provider[CheckpointPolicy] = providers.Selector(
        providers.Callable(parts.policy_branch, settings.provided.policy),
        semantic=providers.Singleton(SemanticCheckpointPolicy, sessions),
        turn_end=providers.Singleton(TurnEndCheckpointPolicy),
        every_event=providers.Singleton(EveryEventCheckpointPolicy, sessions),
        extra=providers.Singleton(parts.extra_policy, settings.provided.policy, sessions),
    )

    # ---------------------------------------------------------------------------------------- in which order
    #
    # The lists run from top to bottom; this is the order of registration, which holds where the settings give none.
    # Middleware above `checkpoint` is outside of it and may act while the log is not durable yet. What a listener above
    # `checkpoint` appends is durable with its step; what one below appends waits for the next flush.

    stream_middleware_order: providers.Provider[Order[StreamMiddleware]] = providers.Singleton(
        arrange,
        settings,
        kinds.STREAM_MIDDLEWARE,
        registration=[
            CHECKPOINT,
        ],
        policy=checkpoint,
        checkpoint=checkpoint.provided.before_request,
    )
    tool_middleware_order: providers.Provider[Order[ToolMiddleware]] = providers.Singleton(
        arrange,
        settings,
        kinds.TOOL_MIDDLEWARE,
        registration=[
            CHECKPOINT,
        ],
        policy=checkpoint,
        checkpoint=checkpoint.provided.before_tool,
    )
    post_step_order: providers.Provider[Order[PostStepListener]] = providers.Singleton(
        arrange,
        settings,
        listeners,
        registration=[
            "usage",
            "title",
            CHECKPOINT,
        ],
        policy=checkpoint,
        checkpoint=checkpoint.provided.after_step,
    )
    policies_order: providers.Provider[Order[ToolPolicy]] = providers.Singleton(
        arrange,
        settings,
        kinds.POLICY,
        registration=[],  # none is shipped
    )
    shipped_guards: providers.Provider[Mapping[str, Guard]] = providers.Singleton(parts.guards, settings)
    guards_order: providers.Provider[Order[Guard]] = providers.Singleton(
        arrange,
        settings,
        kinds.GUARD,
        registration=shipped_guards,
        shipped=shipped_guards,
    )

    stream_middleware = stream_middleware_order.provided.entries
    tool_middleware = tool_middleware_order.provided.entries
    post_step = post_step_order.provided.entries
    policies = policies_order.provided.entries
    guards = guards_order.provided.entries

    # ---------------------------------------------------------------------------------------- what runs

    adapters: providers.Provider[Sequence[Adapter]] = providers.Singleton(parts.adapters, settings)
    llm = providers.Singleton(LlmService, adapters, stream_middleware, sessions)
    tools = providers.Singleton(
        ToolService,
        tool_set,
        policies,
        guards,
        tool_middleware,
        default_timeout_s=settings.provided.tool_timeout_s,
        max_result_bytes=settings.provided.max_tool_result_bytes,
    )
    retry = providers.Singleton(
        BackoffRetryPolicy,
        settings.provided.retry.max,
        settings.provided.retry.base_ms,
        settings.provided.retry.cap_ms,
        jitter=settings.provided.retry.jitter,
        budget_ms=settings.provided.retry.budget_ms,
    )
    loop = providers.Singleton(
        AgentLoop, llm, tools, post_step, retry, max_parallel_tools=settings.provided.max_parallel_tools
    )
    agents = providers.Singleton(
        Agents,
        sessions,
        loop,
        providers.Callable(model_config, settings),
        checkpoint.provided.after_append,
        shutdown_timeout_s=settings.provided.shutdown_timeout_s,
    )


@dataclass(frozen=True, slots=True)
class Built:
    """The application, built: what doors are given. `orders` are the ordered lists, by the names of their settings."""

    settings: Settings
    persistence: SessionPersistence
    sessions: SessionStore
    checkpoint: CheckpointPolicy
    llm: LlmService
    tools: ToolService
    loop: AgentLoop
    agents: Agents
    orders: Mapping[str, Order[Any]]


def build(settings: Settings) -> Built:
    """The application that these settings ask for. Raises ConfigurationError with a line for each fault."""
    return check(Application(settings=settings))


def check(application: Application) -> Built:
    """Build the whole graph, and look at what came of it. Raises ConfigurationError with a line for each fault."""
    faults: dict[str, None] = {}
    for provider in application.providers.values():
        try:
            provider()
        except ConfigurationError as error:  # whatever depends on a faulty part fails with the same lines
            faults |= dict.fromkeys(str(error).split("\n"))
    if faults:
        raise ConfigurationError("\n".join(faults))
    llm, tools, loop = application.llm(), application.tools(), application.loop()
    built = Built(
        application.settings(),
        application.persistence(),
        application.sessions(),
        application.checkpoint(),
        llm,
        tools,
        loop,
        application.agents(),
        orders={
            "stream_middleware": as_held(application.stream_middleware_order(), llm.middleware),
            "tool_middleware": as_held(application.tool_middleware_order(), tools.middleware),
            "post_step": as_held(application.post_step_order(), loop.post_step),
            "policies": as_held(application.policies_order(), tools.policies),
            "guards": as_held(application.guards_order(), tools.guards),
        },
    )
    _refuse(built)
    return built


def _refuse(built: Built) -> None:
    """Raises ConfigurationError for what may not run, whoever put it together."""
    faults = [
        f"{name} ({order.origin}): {fault}"
        for name, order in built.orders.items()
        for fault in find_faults(built.settings, name, order.entries, built.checkpoint if name in PLACES else None)
    ]
    if built.settings.require_durable and not built.persistence.durable:
        told = built.settings.source_of("require_durable")
        faults.append(
            f"require_durable ({told}): the backend {built.persistence.kind!r} is not durable; choose another"
        )
    if faults:
        raise ConfigurationError("\n".join(faults))

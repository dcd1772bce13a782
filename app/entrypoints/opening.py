"""From the options of a command to the running application, and in order out of it again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.entrypoints.conversation import Order, converse
from app.entrypoints.exits import TERMINATED
from app.entrypoints.models import model_arguments
from app.entrypoints.output import Output
from app.entrypoints.stopping import Stopping, leave_at_once
from app.session.errors import ConfigurationError
from app.session.health import Examinable
from app.session.log_state import IDLE
from app.session.store import SessionStore

if TYPE_CHECKING:
    from app.session.persistence import SessionPersistence
    from containers.settings import Settings


def load(
    profile: str | None,
    model: str | None = None,
    workspace: str | None = None,
    tools: str | None = None,
    base_url: str | None = None,
) -> Settings:
    """The settings, with the options over them. Raises ConfigurationError."""
    from containers.settings import load_settings

    search_here()
    arguments: dict[str, Any] = model_arguments(model, base_url)
    if workspace is not None:
        if not Path(workspace).is_dir():
            raise ConfigurationError(f"--workspace {workspace!r}: there is no such directory")
        arguments["workspace"] = workspace
    if tools is not None:
        arguments["tools"] = {"enabled": tools}
    return load_settings(profile, **arguments)


def look(
    settings: Settings,
    action: Callable[[SessionStore, Output], Awaitable[int]],
    output: Output,
    *,
    makes_store: bool = False,
) -> int:
    """Open the store for one action that runs no agent. Raises NoStore where there is none, unless that is made."""
    from containers.lifespan import running

    async def run() -> int:
        lifespan = running(settings, only_store=True)
        if not makes_store:
            await _check_made(lifespan.application.persistence)
        async with lifespan as application:
            return await action(application.sessions, output)

    return asyncio.run(run())


async def _check_made(persistence: SessionPersistence) -> None:
    """Raises StoreUnusable if opening would make a store, or change its schema: who only looks leaves no trace."""
    if isinstance(persistence, Examinable) and (missing := await persistence.missing()) is not None:
        raise missing


def run_to_the_end(settings: Settings, order: Order, output: Output) -> int:
    """Open the application, carry the order out, close in order; the exit code."""
    return asyncio.run(_run_to_the_end(settings, order, output))


async def _run_to_the_end(settings: Settings, order: Order, output: Output) -> int:
    from containers.lifespan import running

    stopping = Stopping(output)
    try:
        lifespan = running(settings)
        if not order.may_create:
            await _check_made(lifespan.application.persistence)
        async with lifespan as application:
            try:
                return await converse(application, order, output, stopping)
            finally:
                stopping.is_closing = True
    except asyncio.CancelledError:
        if stopping.exit_code is None:
            raise
    if stopping.exit_code == TERMINATED:
        _tell_terminated(stopping, output)
    return stopping.exit_code


def _tell_terminated(stopping: Stopping, output: Output) -> None:
    if stopping.agent is None:
        return
    if stopping.agent.session.state.turn.state == IDLE:
        output.warning("stopped by SIGTERM; the log is closed, and the session can be resumed")
        return
    leave_at_once(TERMINATED)  # that it is left to recovery was said; a tool's thread may go on for ever


def search_here() -> None:
    """Let dotted names be found in the working directory too, after everything that is installed."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)

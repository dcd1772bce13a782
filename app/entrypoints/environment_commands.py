"""The commands that tell what this environment comes to. What they do is imported when they are called."""

from __future__ import annotations

from typing import Annotated

import typer

from app.entrypoints.options import BaseUrl, Json, ModelSpec, Profile, Quiet, Tools, Workspace
from app.entrypoints.output import Output


def explain(model: ModelSpec = None, base_url: BaseUrl = None, profile: Profile = None, json: Json = False) -> int:
    """Say what each checkpoint covers here.

    Read from the services as they are built: what is inside and what is outside of each checkpoint.
    """
    from app.entrypoints import environment
    from app.entrypoints.opening import load

    return environment.explain(load(profile, model, base_url=base_url), Output(is_json=json))


def tools(tools: Tools = None, workspace: Workspace = None, profile: Profile = None, json: Json = False) -> int:
    """List the enabled tools.

    Their effects, which decide what a model is told after a crash, and their schemas.
    """
    from app.entrypoints import environment
    from app.entrypoints.opening import load

    return environment.tools(load(profile, None, workspace, tools), Output(is_json=json))


def config_show(profile: Profile = None, json: Json = False) -> int:
    """Print every setting and its source.

    Secrets are masked.
    """
    from app.entrypoints import environment
    from app.entrypoints.opening import load

    return environment.show_settings(load(profile), Output(is_json=json))


def config_check(profile: Profile = None, json: Json = False) -> int:
    """Say what is wrong with the settings.

    Everything is built from them, and nothing opened.
    """
    from app.entrypoints import environment
    from app.entrypoints.opening import load

    return environment.check(load(profile), Output(is_json=json))


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 3 if something is missing.")
    ] = False,
    profile: Profile = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Bring the schema of the store up to date.

    Stores without a schema of their own need none. Safe to call from many processes at once.
    """
    from app.entrypoints import upkeep
    from app.entrypoints.opening import load

    return upkeep.migrate(load(profile), Output(is_json=json, is_quiet=quiet), only_check=check)


def doctor(profile: Profile = None, json: Json = False, quiet: Quiet = False) -> int:
    """Say whether the store can be used, and what to do if not.

    A line for each thing that was looked at: ok, a note that stands in nobody's way, or a fault, whose exit code is
    that of any command that met it. Nothing is made or changed.
    """
    from app.entrypoints import upkeep
    from app.entrypoints.opening import load

    return upkeep.doctor(load(profile), Output(is_json=json, is_quiet=quiet))

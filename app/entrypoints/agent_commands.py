"""The commands that run an agent: `run` and `resume`. What they do is imported when they are called."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from app.entrypoints.options import BaseUrl, Json, ModelSpec, Profile, SessionId, TakeOver, Tools, Wait, Workspace
from app.entrypoints.output import Output
from app.session.errors import ConfigurationError

if TYPE_CHECKING:
    from app.entrypoints.conversation import Order
    from containers.settings import Settings


def run(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to ask; - reads it from standard input.")],
    session: Annotated[str | None, typer.Option(metavar="ID", help="Go on with this session, or begin it.")] = None,
    model: ModelSpec = None,
    base_url: BaseUrl = None,
    workspace: Workspace = None,
    tools: Tools = None,
    profile: Profile = None,
    wait: Wait = False,
    take_over: TakeOver = False,
    json: Json = False,
) -> int:
    """Ask an agent.

    The answer streams on standard output. The session's id comes on standard error as soon as the prompt is durable:
    from then on `beforehand resume ID` can go on, whatever happens to this process. Ctrl-C cancels the turn and closes
    its log; twice, it stops at once. With --json each event is a line as it is recorded, in the form of the log.
    """
    from app.entrypoints.conversation import Order
    from app.entrypoints.opening import load

    order = Order(session, _prompt(prompt), may_create=True, wait=wait, force=take_over)
    return _converse(order, load(profile, model, workspace, tools, base_url), json)


def resume(
    session_id: SessionId,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="What to ask next; - reads it.")] = None,
    model: ModelSpec = None,
    base_url: BaseUrl = None,
    workspace: Workspace = None,
    tools: Tools = None,
    profile: Profile = None,
    wait: Wait = False,
    take_over: TakeOver = False,
    json: Json = False,
) -> int:
    """Go on with a session after a crash, or after anything else.

    A turn that was cut short is closed first: a call whose result is missing gets a result that says so, and what the
    model will read is shown word for word. No tool is run again by itself. Then messages that were accepted and not yet
    taken run, then PROMPT. With neither it says how to go on.
    """
    from app.entrypoints.conversation import Order
    from app.entrypoints.opening import load

    order = Order(session_id, None if prompt is None else _prompt(prompt), wait=wait, force=take_over)
    return _converse(order, load(profile, model, workspace, tools, base_url), json)


def _converse(order: Order, settings: Settings, json: bool) -> int:
    from app.entrypoints.opening import run_to_the_end
    from app.session.identifiers import check_id
    from containers.models import check_model

    if order.session_id is not None:
        check_id(order.session_id)
    if order.prompt is not None:
        check_model(settings)
    return run_to_the_end(settings, order, Output(is_json=json))


def _prompt(text: str) -> str:
    """The prompt, read from standard input for `-`, which loses one line end. Raises ConfigurationError."""
    try:
        if text == "-":
            text = sys.stdin.buffer.read().decode().removesuffix("\n")
        text.encode()
    except ValueError:
        raise ConfigurationError("the prompt is not UTF-8") from None
    if not text:
        raise ConfigurationError("the prompt is empty")
    return text

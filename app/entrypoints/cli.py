"""The command `beforehand`: run an agent whose log survives, go on after a crash, and look at what is stored.

Heavy parts are imported when a command is called, so that asking for help is quick.
"""

from __future__ import annotations

import typer
from typer.exceptions import TyperException

from app.causes import describe
from app.entrypoints import agent_commands, environment_commands, exits, store_commands
from app.entrypoints.output import Output, OutputClosed, abandon_stdout, log_in_lines, take_any_text
from app.session.errors import SessionError

COMMANDS = (
    agent_commands.run,
    agent_commands.resume,
    store_commands.sessions,
    store_commands.show,
    store_commands.tail,
    store_commands.verify,
    store_commands.fork,
    store_commands.export,
    store_commands.import_,
    store_commands.delete,
    store_commands.prune,
    environment_commands.explain,
    environment_commands.tools,
    environment_commands.migrate,
    environment_commands.doctor,
)
"""In the order in which help lists them."""


def beforehand(context: typer.Context) -> None:
    """An agent's log, durable before the model is asked, before a tool acts, and after each step.

    A process killed at any instant leaves a session that goes on, with the model told the truth about what happened.
    """
    _help_without_command(context)


def configuration(context: typer.Context) -> None:
    """Look at the settings in force."""
    _help_without_command(context)


def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def command() -> typer.Typer:
    """Everything that the command line takes."""
    settings = typer.Typer(name="config", rich_markup_mode=None)
    settings.callback(invoke_without_command=True)(configuration)
    settings.command("show")(environment_commands.config_show)
    settings.command("check")(environment_commands.config_check)
    app = typer.Typer(
        name="beforehand",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        epilog=exits.HELP,
    )
    app.callback(invoke_without_command=True)(beforehand)
    for each in COMMANDS:
        app.command(each.__name__.rstrip("_"))(each)
    app.add_typer(settings)
    return app


def main() -> int:
    """Run the command of sys.argv; the exit code. Whatever goes wrong is one line on standard error."""
    take_any_text()
    log_in_lines()
    try:
        return int(command()(standalone_mode=False, prog_name="beforehand") or exits.DONE)
    except TyperException as error:
        return _failed(error.format_message(), exits.USAGE)
    except SessionError as error:
        return _failed(str(error), exits.code_of(error))
    except OutputClosed as error:
        abandon_stdout()
        return exits.PIPE_CLOSED if error.is_gone else _failed(str(error), exits.FAILED)
    except Exception as error:  # a bug of ours, or of an extension that nothing nearer contains: no less one line
        return _failed(f"this is a bug: {describe(error)}", exits.FAILED)


def _failed(message: str, exit_code: int) -> int:
    Output().error("; ".join(message.splitlines()))
    return exit_code

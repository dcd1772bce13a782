"""The options that several commands share, each said once."""

from __future__ import annotations

from typing import Annotated

import typer

SPEC = "openai:MODEL, anthropic:MODEL, the name of a table of `models`, script:FILE or python:pkg.mod:attr."

Profile = Annotated[str | None, typer.Option(help="dev, test or prod: which table of settings holds.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, instead of text.")]
SessionId = Annotated[str, typer.Argument(metavar="ID", help="The session's id; `beforehand sessions` lists them.")]
ModelSpec = Annotated[str | None, typer.Option("--model", metavar="SPEC", help=f"Who answers: {SPEC}")]
BaseUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="Where --model is asked: http://127.0.0.1:8080/v1, say.")
]
Workspace = Annotated[str | None, typer.Option(metavar="DIR", help="The directory that the file tools work in.")]
Tools = Annotated[str | None, typer.Option(metavar="A,B", help="The tools to enable, by name; '' for none.")]
Wait = Annotated[bool, typer.Option("--wait", help="If another process owns the session, wait for its lease to end.")]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="If another process owns it, take it: the other is fenced.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress; only terminals are shown any.")]
Full = Annotated[bool, typer.Option("--full", help="Cut no line.")]

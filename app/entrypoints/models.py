"""`--model SPEC`: which model answers, as the settings that it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.session.errors import ConfigurationError

FORMS = "script:FILE, python:pkg.mod:attr, ADAPTER:MODEL or the NAME of a table of `models`"


def model_arguments(spec: str | None, base_url: str | None = None) -> dict[str, Any]:
    """The settings that `--model` and `--base-url` stand for. Raises ConfigurationError.

    Whether there is such a file, module, adapter or table is for whoever builds the application to say.
    """
    if spec is None:
        if base_url is not None:
            raise ConfigurationError("--base-url goes with --model, which says whose address it is")
        return {}
    kind, colon, rest = spec.partition(":")
    if not kind or (not rest and (colon or kind in ("script", "python"))):
        raise ConfigurationError(f"the model {spec!r} is not written as {FORMS}")
    match kind:
        case "script":
            made: dict[str, Any] = {"model": {"adapter": "script", "name": Path(rest).stem, "script": rest}}
        case "python":
            made = {"adapters": {"extra": {"python": rest}}, "model": {"adapter": "python", "name": rest}}
        case _:
            made = {"model": {"adapter": kind, "name": rest or None}}
    if base_url is not None:
        if kind in ("script", "python"):
            raise ConfigurationError(f"--base-url goes with a model that is asked over HTTP; {spec!r} is not")
        made["models"] = {kind: {"base_url": base_url}}
    return made

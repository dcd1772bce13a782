"""`--model SPEC`: which model answers, as the settings that it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.session.errors import ConfigurationError

FORMS = "script:FILE, python:pkg.mod:attr or ADAPTER:MODEL"


def model_arguments(spec: str) -> dict[str, Any]:
    """The settings of `script:FILE`, `python:pkg.mod:attr` or `ADAPTER:MODEL`. Raises ConfigurationError.

    Whether there is such a file, module or adapter is for whoever builds the application to say.
    """
    kind, _, rest = spec.partition(":")
    if not kind or not rest:
        raise ConfigurationError(f"the model {spec!r} is not written as {FORMS}")
    match kind:
        case "script":
            return {"model": {"adapter": "script", "name": Path(rest).stem, "script": rest}}
        case "python":
            return {"adapters": {"extra": {"python": rest}}, "model": {"adapter": "python", "name": rest}}
        case _:
            return {"model": {"adapter": kind, "name": rest}}

"""Where settings come from: arguments, environment, a directory of secrets, profile tables; and which one won.

Each source becomes a layer. The layers are laid one over another and validated once; every problem found on the way is
told in one error, without a single value that was given.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, NestedSecretsSettingsSource, SettingsError

from app.session.errors import ConfigurationError
from containers.known import CONFIG, PREFIX, SECRET, Known, variable

S = TypeVar("S", bound=BaseSettings)
Table: TypeAlias = dict[str, Any]

OF_TESTS = "BEFOREHAND_TEST_"
"""Variables that steer the project's own tests are no settings; the processes that a test starts inherit them."""

SHIPPED = Path(__file__).with_name("profiles.toml")
OWN = Path("beforehand.toml")
TABLES = ("base", "dev", "test", "prod")


@dataclass(frozen=True, slots=True)
class Layer:
    """The values of one source, as nested dicts, and where one of them, by its dotted name, stands there."""

    values: Table
    origin: Callable[[str], str]


def read(cls: type[S], arguments: Table) -> tuple[S, dict[str, str]]:
    """The settings, and where each value that was set comes from. Raises ConfigurationError with every problem."""
    known = Known(cls)
    problems: list[str] = []
    above = [_named(arguments, "argument"), _environment(cls, known, problems)]
    tables = _tables(cls, above, problems)
    secrets = _secrets(cls, _first([*above, *tables], "secrets_dir"), known, problems)
    merged: Table = {}
    origins: dict[str, str] = {}
    for layer in reversed([*above, *secrets, *tables]):
        _lay_over(merged, layer.values)
        origins |= {name: layer.origin(name) for name in _dotted(layer.values)}
    try:
        settings = cls(**merged)
    except ValidationError as error:
        problems += known.explain(error, origins)
    if problems:
        raise ConfigurationError("\n".join(dict.fromkeys(problems)))
    return settings, origins


# ------------------------------------------------------------------------------------------------ the sources


def _environment(cls: type[BaseSettings], known: Known, problems: list[str]) -> Layer:
    ours = [name.upper() for name in os.environ if name.upper().startswith(PREFIX)]
    problems += known.misspelt(name for name in ours if not name.startswith(OF_TESTS))
    return Layer(EnvSettingsSource(cls)(), variable)


def _secrets(cls: type[BaseSettings], folder: object, known: Known, problems: list[str]) -> list[Layer]:
    """The files of the directory that are named like environment variables. Others may lie there too."""
    if not isinstance(folder, str | Path):  # not set, or wrong: validation tells
        return []
    try:
        files = [file.name.upper() for file in Path(folder).iterdir()]
        values = NestedSecretsSettingsSource(cls, folder, "error")()  # type: ignore[arg-type]  # it takes a class too
    except (OSError, UnicodeError, SettingsError) as error:  # the text of the last one may quote a file
        reason = (isinstance(error, OSError) and error.strerror) or type(error).__name__
        problems.append(f"secrets_dir: cannot be read ({reason}); takes the path of a directory of text files")
        return []
    problems += known.misspelt((name for name in files if name.startswith(PREFIX)), SECRET)
    return [Layer(values, lambda name: f"{SECRET}{Path(folder, variable(name))}")]


def _tables(cls: type[BaseSettings], above: list[Layer], problems: list[str]) -> list[Layer]:
    """The profile's tables, then the base tables; of both, that of the user's own file goes over the shipped one."""
    files = {"the shipped profiles.toml": _read_toml(SHIPPED, problems)}
    named = os.environ.get(CONFIG)
    own = Path(named or OWN)
    if named or own.exists():
        files = {str(own): _read_toml(own, problems), **files}

    base = [_named(tables["base"], f"[base] of {file}") for file, tables in files.items() if "base" in tables]
    profile = _first([*above, *base], "profile") or cls.model_fields["profile"].default
    chosen = [
        _named(values, f"[{name}] of {file}")
        for file, tables in files.items()
        for name, values in tables.items()
        if name == profile != "base"
    ]
    return [*chosen, *base]


def _named(values: Table, origin: str) -> Layer:
    return Layer(values, lambda _: origin)


def _read_toml(path: Path, problems: list[str]) -> dict[str, Table]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return {}
    except ValueError as error:  # no UTF-8, or no TOML
        problems.append(f"{path}: is no TOML: {_reason(error)}")
        return {}
    for name, table in found.items():
        if name not in TABLES or not isinstance(table, dict):
            problems.append(f"{path}: {name!r} is no profile's table; there are [{'], ['.join(TABLES)}]")
        elif name != "base" and "profile" in table:
            problems.append(f"{path}: [{name}] cannot choose the profile; [base] can")
    return {name: table for name, table in found.items() if name in TABLES and isinstance(table, dict)}


def _reason(error: ValueError) -> str:
    if isinstance(error, UnicodeError):  # its text quotes bytes of the file
        return "it is not UTF-8"
    return str(error)


# ------------------------------------------------------------------------------------------------ nested dicts


def _first(layers: Iterable[Layer], name: str) -> Any:
    return next((layer.values[name] for layer in layers if layer.values.get(name) is not None), None)


def _lay_over(under: Table, over: Mapping[str, Any]) -> None:
    for name, value in over.items():
        if isinstance(value, Mapping):
            if not isinstance(under.get(name), dict):
                under[name] = {}
            _lay_over(under[name], value)
        else:
            under[name] = value


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"

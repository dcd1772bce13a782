"""The kinds of values that settings have. The description says what a setting takes: it is what an error tells."""

from __future__ import annotations

import json
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """A table of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return value


def _number_or_off(value: object) -> object:
    return None if value == "off" else _number(value)


def _names(value: object) -> object:
    """A list as TOML and arguments have it, or the text of an environment variable: `a,b`, or a JSON list."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [name.strip() for name in value.split(",")] if value.strip() else []


def _address(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise ValueError("no address of a server")
    return value.rstrip("/")


Count: TypeAlias = Annotated[int, BeforeValidator(_number), Field(ge=1, description="an integer from 1")]
CountOrZero: TypeAlias = Annotated[int, BeforeValidator(_number), Field(ge=0, description="an integer from 0")]
Number: TypeAlias = Annotated[
    float, BeforeValidator(_number), Field(ge=0, allow_inf_nan=False, description="a number from 0")
]
Fraction: TypeAlias = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1, description="a number from 0 to 1")]
Seconds: TypeAlias = Annotated[
    float, BeforeValidator(_number), Field(gt=0, allow_inf_nan=False, description="a number of seconds above 0")
]
Window: TypeAlias = Annotated[
    Annotated[int, Field(ge=1, le=60_000)] | None,
    BeforeValidator(_number_or_off),
    Field(description="an integer from 1 to 60000, or off"),
]
Text: TypeAlias = Annotated[str, Field(min_length=1, description="a text that is not empty")]
Address: TypeAlias = Annotated[
    str, AfterValidator(_address), Field(description="http(s)://host:port/path, without user and password")
]
Names: TypeAlias = Annotated[
    tuple[str, ...], BeforeValidator(_names), Field(description="names, separated by commas or as a list")
]
Paths: TypeAlias = Annotated[dict[str, str], Field(description="a table, each name = 'package.module:attribute'")]

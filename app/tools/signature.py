"""What a function says of itself: parameters with resolved annotations, return type, and where the execution goes."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from app.session.errors import ConfigurationError
from app.tools.types import ToolExecution

UNDECLARED = inspect.Parameter.empty
"""Stands for a default or a return type that is not there."""

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Scope:
    """The names that can be seen where a tool is declared: annotations as text may use them."""

    global_names: Mapping[str, Any]
    local_names: Mapping[str, Any]

    @classmethod
    def of_caller(cls) -> "Scope":
        """That of the function that called the one which asks."""
        frame = inspect.currentframe()
        caller = frame and frame.f_back and frame.f_back.f_back
        return cls(caller.f_globals, dict(caller.f_locals)) if caller else cls({}, {})


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True, slots=True)
class Signature:
    """`parameters` are those a model fills in; `execution` names those that are given the ToolExecution instead."""

    parameters: tuple[Parameter, ...]
    execution: tuple[str, ...]
    returns: Any
    is_async: bool


def read_signature(tool: str, function: Callable[..., Any], scope: Scope) -> Signature:
    """The signature of a body defined in `scope`.

    Raises ConfigurationError, naming tool and parameter, for what no model could call by name.
    """
    plain = plain_function(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise ConfigurationError(f"tool {tool!r} is a generator; a tool returns one value")
    hints = _hints(tool, plain, scope)
    bound = function.keywords if isinstance(function, functools.partial) else {}
    parameters: list[Parameter] = []
    execution: list[str] = []
    for parameter in _parameters(tool, function):
        if parameter.name in bound:
            continue  # its value is given already: not for a model to see or to change
        if parameter.kind not in _BY_NAME:
            raise ConfigurationError(
                f"parameter {parameter.name!r} of tool {tool!r} is {parameter.kind.description}; "
                "every parameter of a tool is given by its name"
            )
        if parameter.name not in hints:
            raise ConfigurationError(f"parameter {parameter.name!r} of tool {tool!r} has no annotation")
        if _is_execution(hints[parameter.name]):
            execution.append(parameter.name)
        else:
            parameters.append(Parameter(parameter.name, hints[parameter.name], parameter.default))
    returns = hints.get("return", UNDECLARED)
    return Signature(tuple(parameters), tuple(execution), returns, inspect.iscoroutinefunction(plain))


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function or method behind a partial, or behind an object that can be called."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__.__get__(function)


def _parameters(tool: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:  # some functions written in C have no signature
        raise ConfigurationError(f"tool {tool!r}: {error}") from error


def _hints(tool: str, function: Callable[..., Any], scope: Scope) -> dict[str, Any]:
    is_defined_here = getattr(inspect.unwrap(function), "__globals__", None) is scope.global_names
    try:
        return get_type_hints(function, localns=scope.local_names if is_defined_here else None, include_extras=True)
    except Exception as error:  # an annotation in quotes is code and may raise anything
        raise ConfigurationError(
            f"an annotation of tool {tool!r} cannot be resolved: {error}; what it names has to be there at run time"
        ) from error


def _is_execution(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        return set(get_args(annotation)) == {ToolExecution, NoneType}
    return annotation is ToolExecution

"""The kinds of things that can be added without changing anything here, and what each of them has to be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from app.agent.step import PostStepListener
from app.llm.types import Adapter, ChunkStream, LlmRequest, StreamMiddleware
from app.session.persistence import SessionPersistence
from app.session.store import SessionStore
from app.tools.schema import as_tool, tool
from app.tools.types import Guard, Tool, ToolMiddleware, ToolPolicy
from containers.extensions import Kind, Unfit
from policy.checkpoint import CheckpointPolicy, Place


def _called_with(*parameters: str) -> Callable[[str, object], Any]:
    """Something that can be called with so many arguments. A class is made into an object first."""

    def fit(_: str, found: object) -> Any:
        made = found() if inspect.isclass(found) else found
        if not callable(made):
            raise Unfit(f"a {type(made).__name__} cannot be called; it has to take ({', '.join(parameters)})")
        try:
            inspect.signature(made).bind(*parameters)
        except TypeError as error:
            raise Unfit(f"it has to take ({', '.join(parameters)}): {error}") from error
        except ValueError:  # some callables of C tell nothing of what they take
            pass
        return made

    return fit


STREAM_MIDDLEWARE: Kind[StreamMiddleware] = Kind(
    "stream_middleware", "stream middleware", "beforehand.stream_middleware", _called_with("request", "call_next")
)
TOOL_MIDDLEWARE: Kind[ToolMiddleware] = Kind(
    "tool_middleware", "tool middleware", "beforehand.tool_middleware", _called_with("execution", "call_next")
)
LISTENER: Kind[PostStepListener] = Kind("post_step", "post-step listener", "beforehand.listeners", _called_with("step"))
POLICY: Kind[ToolPolicy] = Kind("policies", "policy", "beforehand.policies", _called_with("execution"))
GUARD: Kind[Guard] = Kind("guards", "guard", "beforehand.guards", _called_with("execution"))


def _fit_tool(name: str, found: object) -> Tool:
    if inspect.isfunction(found):
        return tool(found, name=name)
    made = as_tool(found() if inspect.isclass(found) else found)
    if made.name != name:
        raise Unfit(f"this tool calls itself {made.name!r}; use that name")
    return made


TOOL: Kind[Tool] = Kind("tools", "tool", "beforehand.tools", _fit_tool)


@dataclass(frozen=True, slots=True)
class Renamed:
    """An adapter under the name that the settings give it."""

    name: str
    adapter: Adapter

    def stream(self, request: LlmRequest) -> ChunkStream:
        return self.adapter.stream(request)


def _fit_adapter(name: str, found: object) -> Adapter:
    """A class, or a function, makes one."""
    is_made = not inspect.isclass(found) and hasattr(found, "stream")
    made: Any = found if is_made or not callable(found) else found()
    if not callable(getattr(made, "stream", None)):
        raise Unfit(f"a {type(made).__name__} is no adapter: it has no `stream`")
    return cast(Adapter, made) if getattr(made, "name", None) == name else Renamed(name, made)


ADAPTER: Kind[Adapter] = Kind("adapters", "adapter", "beforehand.adapters", _fit_adapter)


def checkpoint_policy(sessions: SessionStore) -> Kind[CheckpointPolicy]:
    """A class or a function is given the sessions; an object that is a policy already is used as it is."""

    def fit(_: str, found: object) -> CheckpointPolicy:
        is_made = not inspect.isclass(found) and hasattr(found, "before_request")
        made: Any = found if is_made or not callable(found) else found(sessions)
        _require("checkpoint policy", made, CheckpointPolicy)
        if strange := set(made.places) - set(get_args(Place)):
            raise Unfit(f"its places are some of {', '.join(get_args(Place))}; not {', '.join(map(repr, strange))}")
        return cast(CheckpointPolicy, made)

    return Kind("policy", "checkpoint policy", "beforehand.checkpoint_policies", fit)


def backend(options: Mapping[str, Any]) -> Kind[SessionPersistence]:
    """A class or a function is given the options as keyword arguments; an object that is a backend is used as it is."""

    def fit(_: str, found: object) -> SessionPersistence:
        is_made = not inspect.isclass(found) and hasattr(found, "append")
        made: Any = found
        if not is_made and callable(found):
            _check_options(found, options)
            try:
                made = found(**options)
            except Exception as error:  # foreign code; and what it says may quote an option, which may be secret
                raise Unfit(f"making it with persistence.options raised {type(error).__name__}") from None
        _require("backend", made, SessionPersistence)
        return cast(SessionPersistence, made)

    return Kind("persistence", "backend", "beforehand.backends", fit)


def _check_options(found: Callable[..., object], options: Mapping[str, Any]) -> None:
    try:
        inspect.signature(found).bind(**options)
    except ValueError:
        return  # not every builtin tells its parameters
    except TypeError as error:  # names parameters, and no value
        raise Unfit(f"persistence.options do not fit: {error}") from None


def _require(word: str, made: object, protocol: type) -> None:
    parts = [name for name in vars(protocol) if not name.startswith("_")]
    if lacking := [name for name in parts if not hasattr(made, name)]:
        raise Unfit(f"a {type(made).__name__} is no {word}: it lacks {', '.join(lacking)}")

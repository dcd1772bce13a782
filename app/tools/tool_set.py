"""The tools that there are, by name: what the model is told of them, and who is asked about a call after a crash."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from app.messages import ToolSpec
from app.session.errors import ConfigurationError, LimitExceeded, UnstorableValue
from app.session.recovery import Completed, NotStarted, Reconciled, RecordedCall, Unknown
from app.session.values import encode
from app.tools.declaration import check_declaration
from app.tools.foreign import Raised, answer_of
from app.tools.output import MAX_RESULT_BYTES, checked
from app.tools.types import Tool

logger = logging.getLogger(__name__)


class ToolSource(Protocol):
    """What has to be opened before its tools can be used, or even be known."""

    async def open(self) -> Sequence[Tool]:
        """The tools that are known only now. Raises ConfigurationError, naming the setting."""
        ...

    async def close(self) -> None:
        """Let go of everything, also after an `open` that failed or was cancelled."""
        ...


class ToolSet:
    """Tools with unique names, in the order given. It knows no session, so that recovery can ask it.

    Raises ConfigurationError naming the tool. It changes once, when it is opened: the tools of its sources come in.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        sources: Sequence[ToolSource] = (),
        *,
        reconcile_timeout_s: float = 10.0,
        max_result_bytes: int = MAX_RESULT_BYTES,
    ) -> None:
        self.tools: Mapping[str, Tool] = MappingProxyType({})
        self.specs: tuple[ToolSpec, ...] = ()
        self._sources = tuple(sources)
        self._reconcile_timeout_s = reconcile_timeout_s
        self._max_result_bytes = max_result_bytes
        self._add(tools)

    def _add(self, tools: Sequence[Tool]) -> None:
        by_name = dict(self.tools)
        for tool in tools:
            check_declaration(tool.name, tool.effects, tool.timeout_s, tool.reconcile)
            if tool.name in by_name:
                raise ConfigurationError(f"there are two tools named {tool.name!r}; each needs a name of its own")
            by_name[tool.name] = tool
        self.specs = tuple(_spec(tool) for tool in by_name.values())
        self.tools = MappingProxyType(by_name)

    async def open(self) -> None:
        """Open the sources, side by side. Raises ConfigurationError with a line for each that fails; close then too."""
        answers = await asyncio.gather(*(source.open() for source in self._sources), return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if errors:
            for error in errors:
                if not isinstance(error, ConfigurationError):
                    raise error
            raise ConfigurationError("\n".join(map(str, errors))) from errors[0]
        self._add([tool for answer in answers if not isinstance(answer, BaseException) for tool in answer])

    async def close(self) -> None:
        """Close the sources, side by side; the first error is raised when all have been tried."""
        answers = await asyncio.gather(*(source.close() for source in self._sources), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def get(self, name: str) -> Tool | None:
        return self.tools.get(name)

    def __repr__(self) -> str:
        return f"<ToolSet: {', '.join(self.tools)}>"

    def offers(self, tool: str) -> bool:
        """Whether this tool can tell what became of a call."""
        found = self.get(tool)
        return found is not None and found.reconcile is not None

    async def ask(self, call: RecordedCall) -> Reconciled:
        """What became of a call whose result was never recorded; a value comes in its JSON form.

        Unknown, and a warning that says why, if the tool is gone, raises, takes longer than `reconcile_timeout_s`, or
        answers with something that could not be its result.
        """
        answer = await self._ask(call)
        if isinstance(answer, str):
            logger.warning("call %r of session %s stays unknown: %s", call.call_id, call.session_id, answer)
            return Unknown()
        return answer

    async def _ask(self, call: RecordedCall) -> Reconciled | str:
        """The answer, or why there is none."""
        tool = self.get(call.name)
        if tool is None:
            return f"there is no tool named {call.name!r} any more"
        reconcile = tool.reconcile
        if reconcile is None:
            return Unknown()
        limit = asyncio.timeout(self._reconcile_timeout_s)

        async def ask_in_time() -> object:
            async with limit:
                return await reconcile(call)

        answer = await answer_of(ask_in_time)
        if limit.expired():
            return f"reconcile of {call.name!r} took longer than {self._reconcile_timeout_s:g} s"
        if isinstance(answer, Raised):
            logger.debug("reconcile of tool %r", call.name, exc_info=answer.error)  # its text may quote what is secret
            return f"reconcile of {call.name!r} raised {type(answer.error).__name__}"
        if isinstance(answer, Completed):
            result = checked(tool, answer.value, self._max_result_bytes, has_run=True)
            return Completed(result.value) if result.failure is None else result.failure.message
        if isinstance(answer, NotStarted | Unknown):
            return answer
        return f"reconcile of {call.name!r} answered {type(answer).__name__}, not Completed, NotStarted or Unknown"


def _spec(tool: Tool) -> ToolSpec:
    if not isinstance(tool.description, str):
        raise ConfigurationError(f"tool {tool.name!r}: description is a text, not {tool.description!r}")
    try:
        return ToolSpec(tool.name, tool.description, encode(dict(tool.input_schema)))
    except (UnstorableValue, LimitExceeded) as error:
        raise ConfigurationError(f"tool {tool.name!r}: input_schema is no JSON: {error}") from error

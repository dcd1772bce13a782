"""Awaits code of others so that whatever it raises is an answer; what has to stop the process or this task passes."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from app.tools.types import ToolExecution

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ENDS_THE_PROCESS = (KeyboardInterrupt, SystemExit)


@dataclass(frozen=True, slots=True)
class Raised:
    """Foreign code ended with this error."""

    error: BaseException


async def answer_of(call: Callable[[], Awaitable[T]]) -> T | Raised:
    """What `call` returned, or what it raised.

    Raises KeyboardInterrupt and SystemExit as they come, and CancelledError if this task was cancelled meanwhile, also
    if the foreign code swallowed that. A CancelledError that nobody asked for is an error like any other.
    """
    task = asyncio.current_task()
    assert task is not None
    asked_before = task.cancelling()
    answer: T | Raised
    try:
        answer = await call()
    except BaseException as error:  # foreign code may raise anything, also errors that are no Exception
        if isinstance(error, asyncio.CancelledError) and task.cancelling() > asked_before:
            raise
        if _ends_the_process(error):
            raise
        answer = Raised(error)
    if task.cancelling() > asked_before:
        raise asyncio.CancelledError
    return answer


def answer_at_once(call: Callable[[], T]) -> T | Raised:
    """As `answer_of`, for a synchronous call."""
    try:
        return call()
    except BaseException as error:  # as above
        if _ends_the_process(error):
            raise
        return Raised(error)


def unawaited(answer: object) -> object:
    """`answer`; a coroutine, which a mistaken async function gives, is closed, or Python would warn of it later."""
    if inspect.iscoroutine(answer):
        answer.close()
    return answer


def log_raised(execution: ToolExecution, error: BaseException) -> None:
    """The traceback, for who debugs a tool. At no higher level: errors of foreign code may quote what is secret."""
    logger.debug("call %r of tool %r", execution.call_id, execution.name, exc_info=error)


def _ends_the_process(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(_ENDS_THE_PROCESS) is not None
    return isinstance(error, (*_ENDS_THE_PROCESS, GeneratorExit))

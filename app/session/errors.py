"""What can go wrong with a session, each with a stable code and a message that says what to do."""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal


class SessionError(Exception):
    """Base of every error of ours. `code` is the class name in capitals; `says` is the message's template."""

    code: ClassVar[str] = "INTERNAL"
    says: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Error")).upper()

    def __post_init__(self) -> None:
        Exception.__init__(self, self.says.format(**vars(self)))

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    __hash__ = Exception.__hash__


class PersistenceError(SessionError):
    """The store, or this writer's place in it, stands in the way."""


# -- which session -------------------------------------------------------------------------------


@dataclass(eq=False)
class SessionNotFound(PersistenceError):
    session_id: str
    says = "session {session_id!r} is not stored here; `beforehand sessions` lists those that are"


@dataclass(eq=False)
class SessionDeleted(SessionNotFound):
    says = "session {session_id!r} was deleted; its id cannot be used again"


@dataclass(eq=False)
class SessionExists(PersistenceError):
    session_id: str
    says = "session {session_id!r} exists already; choose another id, or resume it"


@dataclass(eq=False)
class SessionNotLive(PersistenceError):
    session_id: str
    says = "session {session_id!r} is not live here; resume it first"


@dataclass(eq=False)
class SessionHeld(PersistenceError):
    """`seconds_left` is None when the holder is this very process."""

    session_id: str
    owner: str
    seconds_left: float | None
    says = (
        "session {session_id!r} is held by {owner!r}, {left}; wait for the lease to run out (--wait), "
        "or take the session over (--take-over), which ends that owner's writing"
    )

    @property
    def left(self) -> str:
        return "live in this process" if self.seconds_left is None else f"its lease runs {self.seconds_left:.1f} s more"

    def __post_init__(self) -> None:
        Exception.__init__(self, self.says.format(**vars(self), left=self.left))


# -- this writer's place -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stored:
    """What the store holds of a session, told with a refusal. Not an error itself."""

    epoch: int
    next_seq: int
    head: bytes


@dataclass(eq=False)
class SessionFenced(PersistenceError):
    """`stored` is what the refusing store showed; `committed` says whether a batch of unknown outcome is in the log.

    `is_released`: nobody else took it, but this process ended its own claim and then lost the answer.
    """

    session_id: str
    stored: Stored | None = None
    committed: bool | None = None
    is_released: bool = False
    says = "session {session_id!r} was {what}, {written}"

    def __post_init__(self) -> None:
        what = (
            "released by this process before, though the answer was lost; resume it to write to it again"
            if self.is_released
            else "taken over by another process; this one may not write to it any more and has to stop"
        )
        written = "though its last batch is stored" if self.committed else "nothing was written"
        Exception.__init__(self, self.says.format(**vars(self), what=what, written=written))


@dataclass(eq=False)
class SequenceConflict(PersistenceError):
    session_id: str
    expected: int
    given: int
    stored: Stored | None = None
    says = (
        "session {session_id!r} holds other events: the next seq is {expected}, the batch starts at {given}; "
        "nothing was written, resume the session to go on from what is stored"
    )


@dataclass(eq=False)
class StoreRegressed(PersistenceError):
    """The store shows less than it acknowledged, or something else."""

    session_id: str
    acknowledged: int
    found: str
    says = (
        "the store of session {session_id!r} acknowledged {acknowledged} events and now holds {found}; it may be an "
        "old copy. Nothing was written: restore or investigate the store before anything else"
    )


@dataclass(eq=False)
class PersistenceUnavailable(PersistenceError):
    """No answer, no connection, or the store refuses to work. The outcome of a write is unknown."""

    session_id: str
    reason: str
    says = "the store did not answer{whose}: {reason}; what was appended is kept here and will be written again"

    def __post_init__(self) -> None:
        whose = f" for session {self.session_id!r}" if self.session_id else ""
        Exception.__init__(self, self.says.format(**vars(self), whose=whose))


@dataclass(eq=False)
class StoreUnusable(PersistenceError):
    """The store cannot be opened as it is: told before anything is changed."""

    where: str
    reason: str
    says = "cannot use the store {where}: {reason}"


@dataclass(eq=False)
class NoStore(StoreUnusable):
    """Nothing was ever stored there, and who only reads makes no store. `reason` says what does."""

    says = "there is no store at {where} yet; {reason}"


@dataclass(eq=False)
class UnsupportedSchema(StoreUnusable):
    """The store was made, or brought up to date, by a newer build."""


@dataclass(eq=False)
class FlushTimeout(PersistenceError):
    session_id: str
    timeout_ms: int
    says = (
        "the store has not confirmed the events of session {session_id!r} within {timeout_ms} ms "
        "(flush_timeout_ms); they are kept and will be repeated"
    )


# -- what is stored ------------------------------------------------------------------------------


@dataclass(eq=False)
class CorruptLog(PersistenceError):
    """`where` names a seq ("seq 12") or an offset ("offset 4096")."""

    session_id: str
    where: str
    reason: str
    says = "the log of session {session_id!r} is damaged at {where}: {reason}; nothing was changed"


@dataclass(eq=False)
class UnknownEventType(PersistenceError):
    session_id: str
    type: str
    seq: int
    says = (
        "session {session_id!r} holds an event of unknown type {type!r} at seq {seq}; "
        "declare it in the setting extension_events, or use the build that wrote it"
    )


@dataclass(eq=False)
class UnsupportedFormat(PersistenceError):
    session_id: str
    format: str
    says = "the log of session {session_id!r} has format {format}; this build reads format 1{advice}"

    def __post_init__(self) -> None:
        advice = ", use a newer build" if self.format.isdigit() and int(self.format) > 1 else ""
        Exception.__init__(self, self.says.format(**vars(self), advice=advice))


# -- bad use -------------------------------------------------------------------------------------


@dataclass(eq=False)
class InvalidBoundary(SessionError):
    session_id: str
    boundary: str
    says = "session {session_id!r} cannot be forked at {boundary}: it is not the seq of a turn/end"


@dataclass(eq=False)
class OpenTurn(SessionError):
    session_id: str
    boundary: int
    says = "session {session_id!r} cannot be forked at seq {boundary}: a turn is open there; name the seq of a turn/end"


@dataclass(eq=False)
class IllegalEvent(SessionError):
    state: str
    event: str
    condition: str
    says = "{event} may not be appended in state {state}: {condition}"


@dataclass(eq=False)
class ReentrantAppend(SessionError):
    session_id: str
    says = "session {session_id!r} is telling its observers; append after that, or use send, steer or inject"


@dataclass(eq=False)
class UnstorableValue(SessionError):
    """`path` is a JSON pointer to the first bad value ("" is the whole)."""

    path: str
    kind: str
    says = "the value at {path!r} cannot be stored: {kind}"


@dataclass(eq=False)
class LimitExceeded(SessionError):
    setting: str
    limit: int
    size: int | None
    says = "{setting} is {limit}, and this would need {size}"


@dataclass(eq=False)
class InvalidId(SessionError):
    id: str
    rule: str
    says = "{id!r} is no valid id: {rule}"


@dataclass(eq=False)
class MessageConflict(SessionError):
    session_id: str
    message_id: str
    says = "session {session_id!r} accepted message {message_id!r} with other content or placement; give it a new id"


@dataclass(eq=False)
class AbortedBeforeDispatch(SessionError):
    session_id: str
    says = "the request of session {session_id!r} was cancelled before it was sent"


@dataclass(eq=False)
class AgentClosed(SessionError):
    session_id: str
    says = "the agent of session {session_id!r} is closed; resume the session to go on"


@dataclass(eq=False)
class ConfigurationError(SessionError):
    problem: str
    says = "{problem}"


LostCause = Literal["fenced", "deleted", "conflict", "regressed"]

LOST: dict[type[PersistenceError], LostCause] = {
    SessionFenced: "fenced",
    SessionDeleted: "deleted",
    SequenceConflict: "conflict",
    SessionExists: "conflict",
    StoreRegressed: "regressed",
}
"""Errors after which this process can never write to the session again, and the cause given to the turn's signal."""

LOST_ERRORS = (SessionFenced, SessionDeleted, SequenceConflict, StoreRegressed, SessionExists)

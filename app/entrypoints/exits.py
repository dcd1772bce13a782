"""What the command's exit codes mean, and which error has which: the one table."""

from app.session import errors

DONE = 0
FAILED = 1
USAGE = 2
UNAVAILABLE = 3
HELD = 4
CORRUPT = 5
CANCELLED = 130
TERMINATED = 143
PIPE_CLOSED = 141

HELP = """Exit codes: 0 done (a turn that hit max_tokens too, with a notice); 1 the turn ended in error; 2 usage or
configuration; 3 the storage is unavailable; 4 the session is owned elsewhere; 5 the log is damaged, or of a newer
format or schema; 130 cancelled by Ctrl-C; 143 stopped by SIGTERM."""

_CODES: tuple[tuple[type[Exception], int], ...] = (
    (errors.SessionNotFound, USAGE),
    (errors.SessionExists, USAGE),
    (errors.SessionHeld, HELD),
    (errors.SessionFenced, HELD),
    (errors.SequenceConflict, HELD),
    (errors.StoreRegressed, CORRUPT),
    (errors.CorruptLog, CORRUPT),
    (errors.UnknownEventType, CORRUPT),
    (errors.UnsupportedFormat, CORRUPT),
    (errors.UnsupportedSchema, CORRUPT),
    (errors.PersistenceError, UNAVAILABLE),
    (errors.SessionError, USAGE),
)


def code_of(error: BaseException) -> int:
    """The exit code that an error of ours ends the command with; FAILED for any other."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)

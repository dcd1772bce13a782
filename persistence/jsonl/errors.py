"""What the system's errors mean to a session: the one table."""

from __future__ import annotations

import errno
import os

from app.session.errors import PersistenceUnavailable

_MEANINGS = {
    errno.EACCES: "access was refused",
    errno.EAGAIN: "another process keeps the session locked",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file may not grow any further",
    errno.EIO: "the disk cannot be read or written",
    errno.EMFILE: "this process has too many files open",
    errno.ENFILE: "the machine has too many files open",
    errno.ENOENT: "there is no such directory",
    errno.ENOLCK: "no lock can be had",
    errno.ENOSPC: "the disk is full",
    errno.EPERM: "access was refused",
    errno.EROFS: "the disk may not be written",
}


def reason(error: OSError) -> str:
    """What an error means, for a person."""
    code = error.errno or 0
    known = _MEANINGS.get(code) or os.strerror(code)
    return f"{known} ({errno.errorcode.get(code, type(error).__name__)})"


def meaning(error: OSError, session_id: str) -> PersistenceUnavailable:
    """The error of ours to raise instead."""
    return PersistenceUnavailable(session_id, reason(error))

"""Who may write to a session: owners, the epochs that prove it, and leases."""

import os
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path

from app.session.errors import ConfigurationError, InvalidId
from app.session.identifiers import check_id


@dataclass(frozen=True, slots=True)
class Process:
    """This very process, told apart from a later one with the same pid: boot id, pid, start time in clock ticks."""

    boot_id: str
    pid: int
    started: int

    def is_gone(self) -> bool | None:
        """Whether the process has ended; None if it belongs to another boot or machine, so nobody here can tell."""
        if self.boot_id != _boot_id():
            return None
        return _start_ticks(self.pid) != self.started


@dataclass(frozen=True, slots=True)
class Owner:
    """One process that writes sessions, by a name for people. `lease_s` is how long it keeps its place unheard."""

    name: str
    lease_s: float = 30.0
    process: Process | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """The proof of a claim. A later claim has a higher number; number and token must both match to write."""

    number: int
    token: str = field(repr=False)
    owner: Owner

    @classmethod
    def first(cls, owner: Owner) -> "Epoch":
        """The claim of a session that is not stored yet."""
        return cls(1, secrets.token_hex(16), owner)

    @classmethod
    def after(cls, number: int, owner: Owner) -> "Epoch":
        """The claim that follows the one with `number`."""
        return cls(number + 1, secrets.token_hex(16), owner)


def this_owner(name: str | None = None, lease_s: float = 30.0) -> Owner:
    """This process as an owner; the default name is host, pid and a random part.

    Raises ConfigurationError for a name that no store keeps.
    """
    if name is not None:
        try:
            check_id(name)
        except InvalidId as error:
            raise ConfigurationError(f"owner: {error}") from None
    pid = os.getpid()
    boot_id, started = _boot_id(), _start_ticks(pid)
    process = None if boot_id is None or started is None else Process(boot_id, pid, started)
    return Owner(name or f"{socket.gethostname()}-{pid}-{secrets.token_hex(3)}", lease_s, process)


def _boot_id() -> str | None:
    """This boot and, as in another container the same pid is another process, this namespace of pids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # no such file: not Linux. Claims then only end with their lease
        return None


def _start_ticks(pid: int) -> int | None:
    """When a process started, in ticks since boot; None when there is no such process (a zombie counts as gone)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # no such process, or no /proc
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])

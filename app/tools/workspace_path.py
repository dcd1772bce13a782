"""Says which paths a tool may name at all: those below one root, written so that none can lead out of it."""

import os
from dataclasses import dataclass

from app.tools.types import ToolError

OUTSIDE = "PATH_OUTSIDE_WORKSPACE"


@dataclass(frozen=True, slots=True)
class WorkspacePath:
    """A path below the root: its parts, none of which can lead out. The root itself has none."""

    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        for part in self.parts:
            if part == "..":
                raise ToolError(OUTSIDE, f"'{self}' goes up with '..'; give a path below the workspace without it")
            if part in ("", ".") or "/" in part or "\0" in part:
                raise ToolError("INVALID_PATH", f"{str(self)!r} is no path")
            if is_reserved(part):
                raise ToolError("PATH_RESERVED", f"'{self}' belongs to the runtime; tools have no access to it")

    @classmethod
    def parse(cls, path: str) -> "WorkspacePath":
        """`path` as a model writes it, with `/` between the parts; empty or `.` is the root. Raises ToolError."""
        if path.startswith("/"):
            raise ToolError(OUTSIDE, f"'{path}' is absolute; give a path relative to the workspace")
        if not path.isascii() and any("\ud800" <= character <= "\udfff" for character in path):
            raise ToolError("INVALID_PATH", f"{path!r} holds an unpaired surrogate")
        return cls(tuple(part for part in path.split("/") if part not in ("", ".")))

    def __str__(self) -> str:
        # A name on disk that is not UTF-8 is shown escaped: a vendor may refuse half a character for ever after.
        return os.fsencode("/".join(self.parts) or ".").decode("utf-8", "backslashreplace")

    @property
    def parent(self) -> "WorkspacePath":
        return WorkspacePath(self.parts[:-1])

    @property
    def name(self) -> str:
        """The last part; a ToolError for the root, which is no file."""
        if not self.parts:
            raise ToolError("NOT_A_FILE", "the path is the workspace itself, not a file in it")
        return self.parts[-1]


def is_reserved(name: str) -> bool:
    """True for the names of the runtime: session store, settings (which name code to load), temporary files."""
    folded = name.casefold()  # some file systems take both cases for one name
    return folded == "beforehand.toml" or folded.startswith(".beforehand")

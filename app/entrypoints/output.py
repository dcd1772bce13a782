"""Where the command's text goes: exact for a pipe, coloured for a terminal, and unable to steer either.

What was asked for goes to standard output, everything said about it to standard error.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, TextIO, TypeAlias

from app.causes import describe
from app.entrypoints.escaping import escaped, fitted, one_line

if TYPE_CHECKING:
    from rich.console import Console

Part: TypeAlias = tuple[str, str]
"""A piece of a line and its style, in rich's words; "" is plain."""
Line: TypeAlias = tuple[Part, ...]

PIPE_WIDTH = 120
_REDRAWN_S = 0.1


def plain(line: Line) -> str:
    """The line without its styles."""
    return "".join(text for text, _ in line)


class OutputClosed(Exception):
    """A standard stream takes no more. `is_gone` when its reader went away, as `head` does."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write the output: {error.strerror or error}")
        self.is_gone = isinstance(error, BrokenPipeError)


class Stream:
    """One of the two standard streams. Raises OutputClosed."""

    def __init__(self, stream: TextIO) -> None:
        self.is_terminal = stream.isatty()
        self._stream = stream
        self._console: Console | None = None

    @property
    def width(self) -> int:
        """Columns: the terminal's, or the same number for every pipe."""
        return shutil.get_terminal_size().columns if self.is_terminal else PIPE_WIDTH

    def write(self, text: str) -> None:
        """Text as it is, at once; on a terminal its control characters are written out."""
        self._put(escaped(text) if self.is_terminal else text)

    def line(self, line: Line) -> None:
        """One line, which has to be free of control characters already."""
        if self.is_terminal and any(style for _, style in line):
            self._print(line)
        else:
            self._put(plain(line) + "\n")

    def draw(self, text: str) -> None:
        """Take the place of what stands on the terminal's last line, without ending it."""
        self._put(f"\r\x1b[K{fitted(text, self.width - 1)}")

    def _put(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            raise OutputClosed(error) from error

    def _print(self, line: Line) -> None:
        from rich.console import Console
        from rich.text import Text

        if self._console is None:
            self._console = Console(file=self._stream, highlight=False, markup=False, emoji=False)
        with self._console.capture() as captured:
            self._console.print(Text.assemble(*line), soft_wrap=True)
        self._put(captured.get())


class Output:
    """Standard output and standard error, and where on its line the streamed answer stands.

    With `is_json` standard output takes JSON texts only, one a line.
    """

    _told: ClassVar[set[str]] = set()  # by the whole process: what is logged on the way is often the error in the end
    _drawn: ClassVar[Stream | None] = None  # where a line of progress stands now, whoever drew it

    def __init__(
        self,
        *,
        is_json: bool = False,
        is_quiet: bool = False,
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> None:
        self.is_json = is_json
        self._out = Stream(out or sys.stdout)
        self._err = Stream(err or sys.stderr)
        self._is_mid_line = False
        self._draws = self._err.is_terminal and not (is_json or is_quiet)
        self._drawn_at = 0.0

    @property
    def width(self) -> int:
        return self._out.width

    def answer(self, text: str) -> None:
        """A piece of the answer, as it comes."""
        if text:
            self._is_mid_line = not text.endswith("\n")
            self._out.write(text)

    def end_answer(self) -> None:
        """Whatever follows starts on a line of its own."""
        if self._is_mid_line:
            self._is_mid_line = False
            self._out.write("\n")

    def lines(self, lines: Iterable[Line]) -> None:
        """Lines for standard output."""
        for line in lines:
            self._erase()
            self._out.line(line)

    @contextmanager
    def progress(self, text: str) -> Iterator[None]:
        """While inside, a line on standard error tells what a long operation is at, if that is a terminal."""
        self.at(text)
        try:
            yield
        finally:
            self._erase()

    def at(self, text: str) -> None:
        """What it is at now. Seldom drawn, so that it may be told of every event."""
        now = time.monotonic()
        if self._draws and now - self._drawn_at > _REDRAWN_S:
            self._drawn_at, Output._drawn = now, self._err
            self._err.draw(text)

    @classmethod
    def _erase(cls) -> None:
        if cls._drawn is not None:
            stream, cls._drawn = cls._drawn, None
            stream.draw("")

    def record(self, text: str) -> None:
        """One JSON text as a line of standard output."""
        self.lines([((text, ""),)])

    def note(self, *parts: Part) -> None:
        """One line for standard error. On a shared terminal it does not continue the answer's line."""
        if self._is_mid_line and self._out.is_terminal and self._err.is_terminal:
            self._is_mid_line = False
            self._out.write("\n")
        try:
            self._erase()
            self._err.line(tuple((one_line(text), style) for text, style in parts))
        except OutputClosed:  # nobody listens any more, and there is nobody else to tell
            pass

    def error(self, text: str) -> None:
        """One line that says what is wrong; the same is said once."""
        self._tell(text, "bold red")

    def warning(self, text: str) -> None:
        """The same, where the command goes on."""
        self._tell(text, "yellow")

    def _tell(self, text: str, style: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.note(("beforehand: ", style), (text, ""))


class _Lines(logging.Handler):
    """What parts of the runtime log is for the user here: one line each, with the error but without its traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() + (f": {describe(error)}" if error is not None else "")
        Output().warning("; ".join(text.splitlines()))


def log_in_lines() -> None:
    """Have warnings and errors that are logged appear like every other line of the command."""
    logging.basicConfig(level=logging.WARNING, handlers=[_Lines()])


def take_any_text() -> None:
    """Make both standard streams write what their encoding lacks as an escape instead of failing half way."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def abandon_stdout() -> None:
    """Nobody reads standard output any more: what is still buffered goes nowhere, silently."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

"""What the file tools answer: lists, pieces of files and search results, of a bounded size, saying what is missing."""

import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import BinaryIO

from app.tools.types import ToolError
from app.tools.workspace import Entry, Kind, Workspace
from app.tools.workspace_path import WorkspacePath

# What one answer may hold: with the worst of escaping it stays below the default limit of a result's stored text.
MAX_ANSWER_BYTES = 262_144
MAX_LINE_CHARACTERS = 300
MAX_PROBLEMS = 20
# What one call may look at.
MAX_ENTRIES = 100_000
MAX_SEARCHED_FILE_BYTES = 8_388_608
MAX_SEARCHED_BYTES = 268_435_456


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """`size` is in bytes, None for all but files."""

    path: str
    kind: Kind
    size: int | None


@dataclass(frozen=True, slots=True)
class FileList:
    """`truncated` if something is missing: over a limit, or for one of the `problems`, which say what and why."""

    entries: list[FoundEntry]
    truncated: bool
    problems: list[str]


@dataclass(frozen=True, slots=True)
class FileText:
    """`lines` lines of a file from line `offset` (from 0) on; if there are more, they go on at `next_offset`.

    `truncated` if there are more, or if this one line was too long and lost its end.
    """

    path: str
    text: str
    offset: int
    lines: int
    truncated: bool
    next_offset: int | None


@dataclass(frozen=True, slots=True)
class FoundLine:
    """`line` counts from 1; `text` is the line, or the part of a long one round the place."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class FoundLines:
    """As in FileList. A skipped file is not UTF-8 text, too large, or could not be read."""

    matches: list[FoundLine]
    truncated: bool
    problems: list[str]
    files_searched: int
    files_skipped: int


def list_files(
    workspace: Workspace, path: str, *, recursive: bool, glob: str | None, limit: int, is_cancelled: Callable[[], bool]
) -> FileList:
    """The entries in a directory, without itself, in the order of Workspace.walk."""
    top = WorkspacePath.parse(path)
    room = _Room(limit)
    found: list[FoundEntry] = []
    problems: list[str] = []
    is_cut = False
    for count, entry in enumerate(workspace.walk(top, recursive=recursive)):
        if count > MAX_ENTRIES or is_cancelled():
            is_cut = True
            break
        if entry.problem is not None:
            problems.append(entry.problem)
        if entry.path == top:
            if entry.kind != "directory":
                raise ToolError("NOT_A_DIRECTORY", f"'{top}' is a {entry.kind}, not a directory")
            continue
        if not matches(glob, entry.path):
            continue
        if not room.takes(str(entry.path)):
            is_cut = True
            break
        found.append(FoundEntry(str(entry.path), entry.kind, entry.size))
    return FileList(found, is_cut or bool(problems), problems[:MAX_PROBLEMS])


def read_file(workspace: Workspace, path: str, *, offset: int, limit: int) -> FileText:
    """Whole lines, at least one of them or its beginning; line ends stay as they are."""
    where = WorkspacePath.parse(path)
    taken: list[bytes] = []
    room = MAX_ANSWER_BYTES
    is_cut = has_more = False
    with workspace.reading(where) as stream:
        for _ in range(offset):
            if not _skip_line(stream):
                break
        while len(taken) < limit and (line := stream.readline(room + 1)):
            if len(line) > room:
                is_cut = not taken
                has_more = not is_cut
                if is_cut:
                    taken.append(line[:room])
                    if not line.endswith(b"\n"):
                        _skip_line(stream)
                break
            taken.append(line)
            room -= len(line)
        has_more = has_more or bool(stream.read(1))
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(b"".join(taken), final=not is_cut)
    except UnicodeDecodeError as error:
        raise ToolError("NOT_TEXT", f"'{where}' is not UTF-8 text") from error
    return FileText(
        path=str(where),
        text=text,
        offset=offset,
        lines=len(taken),
        truncated=is_cut or has_more,
        next_offset=offset + len(taken) if has_more else None,
    )


def search_files(
    workspace: Workspace,
    text: str,
    path: str,
    *,
    glob: str | None,
    ignore_case: bool,
    limit: int,
    is_cancelled: Callable[[], bool],
) -> FoundLines:
    """The lines that hold `text` as it stands, in one file or in all below a directory, in the order of the walk."""
    if "\n" in text or not text:
        raise ToolError("INVALID_ARGUMENTS", "text is looked for in each line: it is not empty and holds no line end")
    room = _Room(limit)
    found: list[FoundLine] = []
    problems: list[str] = []
    searched = skipped = searched_bytes = 0
    is_cut = False
    for count, entry in enumerate(workspace.walk(WorkspacePath.parse(path), recursive=True)):
        if is_cut or count > MAX_ENTRIES or searched_bytes > MAX_SEARCHED_BYTES or is_cancelled():
            is_cut = True
            break
        if entry.problem is not None:
            problems.append(entry.problem)
        if entry.kind != "file" or not matches(glob, entry.path):
            continue
        content = _text_of(workspace, entry)
        if content is None:
            skipped += 1
            continue
        searched += 1
        searched_bytes += len(content)
        for line in _lines_with(text, content, str(entry.path), ignore_case=ignore_case):
            if not room.takes(line.path + line.text):
                is_cut = True
                break
            found.append(line)
    return FoundLines(found, is_cut or bool(problems), problems[:MAX_PROBLEMS], searched, skipped)


def matches(glob: str | None, path: WorkspacePath) -> bool:
    """Whether a path is meant. A pattern without `/` is for a name in any directory; `**` stands for any directories.

    Part by part, so that no pattern takes longer than its parts times those of the path.
    """
    if glob is None:
        return True
    patterns = [part for part in glob.split("/") if part not in ("", ".")] if "/" in glob else ["**", glob]
    taken = {0}  # how many parts of the path the patterns so far may have used up
    for pattern in patterns:
        if pattern == "**":
            taken = set(range(min(taken), len(path.parts) + 1))
        else:
            taken = {n + 1 for n in taken if n < len(path.parts) and fnmatchcase(path.parts[n], pattern)}
        if not taken:
            return False
    return len(path.parts) in taken


class _Room:
    """What an answer may still hold."""

    def __init__(self, items: int) -> None:
        self._items = items
        self._bytes = MAX_ANSWER_BYTES

    def takes(self, text: str) -> bool:
        self._items -= 1
        self._bytes -= len(text.encode())
        return self._items >= 0 and self._bytes >= 0


def _skip_line(stream: BinaryIO) -> bool:
    """False if the file ended before the line did."""
    while piece := stream.readline(65_536):  # a line may be as long as the file, and memory is not
        if piece.endswith(b"\n"):
            return True
    return False


def _text_of(workspace: Workspace, entry: Entry) -> str | None:
    try:
        with workspace.reading(entry.path) as stream:
            content = stream.read(MAX_SEARCHED_FILE_BYTES + 1)
    except ToolError:  # gone or exchanged since it was listed, or not ours to read: the caller counts it
        return None
    if len(content) > MAX_SEARCHED_FILE_BYTES:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:  # the same
        return None


def _lines_with(text: str, content: str, path: str, *, ignore_case: bool) -> Iterator[FoundLine]:
    fold = str.casefold if ignore_case else str
    needle = fold(text)
    if needle not in fold(content):
        return
    for number, line in enumerate(content.split("\n"), 1):
        place = fold(line).find(needle)
        if place >= 0:
            yield FoundLine(path, number, _excerpt(line.removesuffix("\r"), place))


def _excerpt(line: str, place: int) -> str:
    if len(line) <= MAX_LINE_CHARACTERS:
        return line
    start = max(0, min(place - MAX_LINE_CHARACTERS // 3, len(line) - MAX_LINE_CHARACTERS))
    end = start + MAX_LINE_CHARACTERS
    return f"{'...' if start else ''}{line[start:end]}{'...' if end < len(line) else ''}"

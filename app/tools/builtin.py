"""The tools that come with the runtime: work on the files of one directory, and commands run in it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from app.tools import command, files
from app.tools.command import CommandResult
from app.tools.files import FileList, FileText, FoundLines
from app.tools.schema import tool
from app.tools.types import Tool, ToolError, ToolExecution
from app.tools.workspace import Workspace
from app.tools.workspace_path import WorkspacePath

FilePath = Annotated[str, "the file, as a path from the workspace's root with '/' between its parts, without '..'"]
Glob = Annotated[
    str | None,
    "only what matches: *.py is a name in any directory, src/**/test_?.py a path from the workspace's root",
    Field(max_length=1000),
]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    path: str
    size: int
    replaced: bool


@dataclass(frozen=True, slots=True)
class AppendedFile:
    path: str
    size: int


def workspace_tools(root: Path) -> tuple[Tool, ...]:
    """The six tools, bound to the directory `root`. Which of them an agent gets is for others to say. Does no I/O."""
    tools = WorkspaceTools(root)
    return (
        tool(tools.list_files, effects="read_only", parallel_safe=True),
        tool(tools.read_file, effects="read_only", parallel_safe=True),
        tool(tools.search_files, effects="read_only", parallel_safe=True),
        tool(tools.write_file, effects="idempotent"),
        tool(tools.append_file, effects="side_effect"),
        tool(tools.run_command, effects="side_effect"),
    )


class WorkspaceTools:
    """The bodies; their docstrings are what a model is told. All raise ToolError, see Workspace and command.run."""

    def __init__(self, root: Path) -> None:
        self._workspace = Workspace(root)

    def list_files(
        self,
        path: Annotated[str, "the directory, as a path from the workspace's root; '.' is the root"] = ".",
        recursive: Annotated[bool, "also what is in the directories below"] = False,
        glob: Glob = None,
        limit: Annotated[int, "entries at most", Field(ge=1, le=2000)] = 500,
        *,
        execution: ToolExecution,
    ) -> FileList:
        """List a directory of the workspace: path, kind and size in bytes of each entry.

        Hidden directories (with a dot before the name) are listed but not entered: name one as `path` to see into it.
        Symbolic links are listed and never followed. `truncated` means that something is missing: entries over the
        limit, or what `problems` says.
        """
        return files.list_files(
            self._workspace,
            path,
            recursive=recursive,
            glob=glob,
            limit=limit,
            is_cancelled=lambda: execution.signal.is_cancelled,
        )

    def read_file(
        self,
        path: FilePath,
        offset: Annotated[int, "lines to skip", Field(ge=0)] = 0,
        limit: Annotated[int, "lines at most", Field(ge=1, le=10_000)] = 2000,
    ) -> FileText:
        """Read a UTF-8 text file of the workspace, or some of its lines.

        If there are more lines, `truncated` is true: go on with `offset` set to `next_offset`. An answer holds 256 KiB;
        of a line longer than that only the beginning is given.
        """
        return files.read_file(self._workspace, path, offset=offset, limit=limit)

    def search_files(
        self,
        text: Annotated[str, "what to look for, as it stands: no regular expression, no line end", Field(min_length=1)],
        path: Annotated[str, "the directory to search with all below it, or one file; '.' is the root"] = ".",
        glob: Glob = None,
        ignore_case: Annotated[bool, "whether 'A' also finds 'a'"] = False,
        limit: Annotated[int, "lines at most", Field(ge=1, le=1000)] = 100,
        *,
        execution: ToolExecution,
    ) -> FoundLines:
        """Find the lines that contain a text in the UTF-8 text files of the workspace.

        Lines count from 1; of a long line the part around the text is given. Files over 8 MiB and hidden directories
        (with a dot before the name) are skipped: name one as `path` to search a hidden directory. `truncated` means
        that something is missing: lines over the limit, or what `problems` says.
        """
        return files.search_files(
            self._workspace,
            text,
            path,
            glob=glob,
            ignore_case=ignore_case,
            limit=limit,
            is_cancelled=lambda: execution.signal.is_cancelled,
        )

    def write_file(self, path: FilePath, content: Annotated[str, "the whole new text of the file"]) -> WrittenFile:
        """Write a text file of the workspace, in place of the old one if there is one; missing directories are made.

        The file is never half written. `size` is in bytes, `replaced` tells if there was a file before.
        """
        where = WorkspacePath.parse(path)
        raw = _utf8(content)
        replaced = self._workspace.write(where, raw)
        return WrittenFile(str(where), len(raw), replaced)

    def append_file(self, path: FilePath, content: Annotated[str, "what to add, line end included"]) -> AppendedFile:
        """Add text to the end of a file of the workspace; the file and missing directories are made.

        `size` is that of the whole file afterwards, in bytes. Doing it twice adds the text twice.
        """
        where = WorkspacePath.parse(path)
        return AppendedFile(str(where), self._workspace.append(where, _utf8(content)))

    async def run_command(
        self,
        argv: Annotated[list[str], "the program and its arguments, one string each", Field(min_length=1)],
        timeout_s: Annotated[float, "seconds after which it is ended", Field(gt=0, le=3600)] = 60,
        *,
        execution: ToolExecution,
    ) -> CommandResult:
        """Run a program in the workspace's directory and wait until it ends.

        There is no shell: for pipes and patterns give ["sh", "-c", "..."]. It has no input, and no secrets in its
        environment. What it still has running in the background when it ends, or when its time is over, is ended too.
        Of long output the first and the last 32 KiB are kept. A non-zero `exit_code` is an answer, not an error.
        """
        return await command.run(
            argv,
            directory=self._workspace.root,
            environment=command.clean_environment(os.environ),
            timeout_s=timeout_s,
            cancelled=execution.signal.wait,
        )


def _utf8(content: str) -> bytes:
    try:
        return content.encode()
    except UnicodeEncodeError as error:
        raise ToolError("NOT_TEXT", f"the content has an unpaired surrogate at character {error.start}") from error

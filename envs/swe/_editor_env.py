"""The SWE environment with a file viewer and an editor beside the shell."""

from __future__ import annotations

import posixpath
from typing import Any, ClassVar, NamedTuple

from trajgym.envs import ToolError, ToolResult, tool
from trajgym.envs.sandbox import SandboxFileError
from trajgym.envs.swe import _editing as editing
from trajgym.envs.swe._env import SweEnvBase
from trajgym.envs.swe._layout import REPO
from trajgym.trajectory import InvalidInput

__all__ = ["SweEnv", "relative"]

_MATCHES = 100
_LINE = 300  # bytes shown of a matching line
_EDITS = 50
_EDIT_CHARACTERS = 1 << 20


class SweEnv(SweEnvBase):
    """A SWE task with a shell, a file viewer and an editor: ``trajgym.envs`` id ``swe``."""

    hint: ClassVar[str] = (
        "Look at files with view and search, change them with str_replace, insert, create, and "
        "take a change back with undo. "
    )

    def __init__(self, *, window: int = 200, **config: Any) -> None:
        if window < 1:
            raise InvalidInput(f"window must be at least 1 line, not {window}")
        super().__init__(**config)
        self.window = window
        self._undo: list[Edited] = []

    def kept(self) -> dict[str, Any]:
        """Return the edits that can be undone."""
        return {"undo": [list(edited) for edited in self._undo]}

    def take(self, state: dict[str, Any]) -> None:
        """Restore the edits that can be undone from a snapshot."""
        self._undo = [Edited(*edited) for edited in state["undo"]]

    @tool
    async def view(self, path: str, start: int = 1, end: int | None = None) -> ToolResult:
        """Show lines of a file with their numbers, or list a folder. Long files come in windows.

        Args:
            path: relative to the repository, or absolute.
            start: first line, from 1.
            end: last line, included; by default one window after start.
        """
        near = self._trace.call("view", {"path": path, "start": start, "end": end})
        try:
            content = await self._read(path)
        except ToolError:
            listing = await self.sandbox.run(["ls", "-1Ap", f"{_absolute(path)}/"], timeout=30.0)
            if not listing.ok:
                raise
            text = editing.shortened(listing.stdout, self.output_bytes, listing.dropped_stdout)
            return self._result(text or "the folder is empty", near)
        text = editing.numbered(content, start, end or start + self.window - 1, path)
        shown = editing.shortened(editing.encode(text), self.output_bytes)
        if end is None and (rest := editing.rest_of(content, start, self.window)):
            shown += f"\n{rest}"
        return self._result(shown, self._trace.look(relative(path)) | near)

    @tool
    async def search(self, pattern: str, path: str = ".") -> ToolResult:
        """Find lines by a regular expression in all text files of a folder, or in one file.

        Args:
            pattern: extended regular expression, as `grep -E` takes it.
            path: relative to the repository, or absolute.
        """
        near = self._trace.call("search", {"pattern": pattern, "path": path})
        line = ["grep", "-rnIE", "--exclude-dir=.git", "-e", pattern, "--", _shown_as(path)]
        done = await self.sandbox.run(line, timeout=self.command_seconds, cwd=REPO)
        if done.exit_code > 1 and not done.stdout:
            raise ToolError(f"search failed: {done.stderr.decode('utf-8', 'replace').strip()}")
        lines = (line.removeprefix(b"./") for line in done.stdout.split(b"\n") if line)
        found = sorted(lines, key=_by_place)
        shown = b"\n".join(line[:_LINE] for line in found[:_MATCHES])
        text = editing.shortened(shown, self.output_bytes) or "no match"
        if len(found) > _MATCHES:
            text += f"\n[{len(found) - _MATCHES} more matches; narrow the pattern or the path]"
        return self._result(text, {"matches": len(found)} | near)

    @tool
    async def undo(self, path: str) -> ToolResult:
        """Undo the last change that str_replace, insert or create made to a file.

        Args:
            path: relative to the repository, or absolute.
        """
        near = self._trace.call("undo", {"path": path})
        where = _absolute(path)
        places = [i for i, edited in enumerate(self._undo) if edited.path == where]
        if not places:
            raise ToolError(f"there is no change of {path} to undo")
        before = self._undo.pop(places[-1])
        if before.text is None:
            await self.sandbox.run(["rm", "-f", "--", where], timeout=30.0)
        else:
            await self._put(where, before.text, before.mode, path)
        return self._result(f"undid the last change of {path}", self._noted(where) | near)

    @tool
    async def str_replace(self, path: str, old: str, new: str) -> ToolResult:
        """Replace text that occurs exactly once in a file.

        Args:
            path: relative to the repository, or absolute.
            old: the text as it is in the file, blanks and line ends included.
            new: the text to put in its place.
        """
        near = self._trace.call("str_replace", {"path": path, "old": old, "new": new})
        before = await self._read(path)
        text, line = editing.replaced(before, old, new, path)
        return await self._write(path, before, text, f"replaced at line {line} of {path}", near)

    @tool
    async def insert(self, path: str, line: int, text: str) -> ToolResult:
        """Insert whole lines into a file.

        Args:
            path: relative to the repository, or absolute.
            line: the number of the line after which they are inserted; 0 is the top.
            text: the lines.
        """
        near = self._trace.call("insert", {"path": path, "line": line, "text": text})
        before = await self._read(path)
        changed = editing.inserted(before, line, text, path)
        return await self._write(
            path, before, changed, f"inserted after line {line} of {path}", near
        )

    @tool
    async def create(self, path: str, content: str) -> ToolResult:
        """Create a file; an existing file is an error.

        Args:
            path: relative to the repository, or absolute; folders are created.
            content: the whole content.
        """
        near = self._trace.call("create", {"path": path, "content": content})
        there = await self.sandbox.run(["test", "-e", _absolute(path)], timeout=30.0)
        if there.ok:
            raise ToolError(f"{path} exists already; change it with str_replace or insert")
        return await self._write(path, None, content, f"created {path}", near)

    async def _read(self, path: str) -> str:
        try:
            return editing.decode(await self.sandbox.read_file(_absolute(path)))
        except SandboxFileError as error:
            raise ToolError(f"{path} can't be read: {error}") from error

    async def _write(
        self, path: str, before: str | None, text: str, said: str, near: dict[str, Any]
    ) -> ToolResult:
        where = _absolute(path)
        mode = 0o644
        if before is not None:
            stat = await self.sandbox.run(["stat", "-L", "-c", "%a", where], timeout=30.0)
            mode = int(stat.stdout, 8) if stat.ok else mode
        await self._put(where, text, mode, path)
        self._undo.append(Edited(where, before, mode))
        self._undo = bounded(self._undo)
        return self._result(said, self._noted(where) | near)

    async def _put(self, where: str, text: str, mode: int, path: str) -> None:
        try:
            await self.sandbox.write_file(where, editing.encode(text), mode=mode)
        except SandboxFileError as error:
            raise ToolError(f"{path} can't be written: {error}") from error

    def _noted(self, where: str) -> dict[str, Any]:
        return self._trace.edit(relative(where))


class Edited(NamedTuple):
    """One edit: the file's content before (None: it did not exist), and its mode."""

    path: str
    text: str | None
    mode: int


def bounded(edits: list[Edited]) -> list[Edited]:
    """Return the latest edits, up to the size that a snapshot may have."""
    kept: list[Edited] = []
    size = 0
    for edited in reversed(edits[-_EDITS:]):
        size += len(edited.text or "")
        if size > _EDIT_CHARACTERS:
            break
        kept.append(edited)
    return kept[::-1]


def _absolute(path: str) -> str:
    if not path or "\0" in path:
        raise ToolError("path is empty or holds a NUL character")
    return posixpath.normpath(posixpath.join(REPO, path))


def relative(path: str) -> str:
    """Return a path as it is in the repository; absolute ones outside stay absolute."""
    return _absolute(path).removeprefix(f"{REPO}/")


def _shown_as(path: str) -> str:
    """Return a path as results show it: relative if it is in the repository."""
    where = relative(path)
    return "." if where == REPO else where


def _by_place(line: bytes) -> tuple[bytes, int]:
    name, _, rest = line.partition(b":")
    number = rest.partition(b":")[0]
    return name, int(number) if number.isdigit() else 0

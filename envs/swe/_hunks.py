"""Parses patches that `git diff` wrote, for the scripted agent."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["FileChange", "Hunk", "parse_patch"]

_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")
_SAME = re.compile(r"^diff --git a/(.*) b/\1$")


class Hunk(NamedTuple):
    """One hunk: its lines before and after, both with context."""

    old_start: int
    old: str
    new: str

    def trimmed(self) -> tuple[str, str]:
        """Return both sides with at most one line of shared context at either end."""
        old, new = self.old.splitlines(keepends=True), self.new.splitlines(keepends=True)
        head = _shared(old, new)
        tail = _shared(old[head:][::-1], new[head:][::-1])
        head, tail = max(0, head - 1), max(0, tail - 1)
        return "".join(old[head : len(old) - tail]), "".join(new[head : len(new) - tail])


class FileChange(NamedTuple):
    """The change of one file; a path is empty where the file does not exist on that side."""

    old_path: str
    new_path: str
    hunks: tuple[Hunk, ...]
    text: str

    @property
    def path(self) -> str:
        """The path that is not empty."""
        return self.new_path or self.old_path


def parse_patch(patch: str) -> list[FileChange]:
    """Return the changes of a patch with plain paths; binary files have no hunks."""
    starts = [match.start() for match in re.finditer(r"^diff --git ", patch, re.MULTILINE)]
    ends = [*starts[1:], len(patch)] if starts else []
    return [_file(patch[start:end]) for start, end in zip(starts, ends, strict=True)]


def _file(text: str) -> FileChange:
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if line.startswith("@@ ")), len(lines))
    old_path, new_path = _paths(lines[:first])
    hunks: list[Hunk] = []
    sides: tuple[list[str], list[str]] = ([], [])
    start, last = 0, ""
    for line in lines[first:]:
        if match := _HUNK.match(line):
            _finish(hunks, start, sides)
            start, sides = int(match[1]), ([], [])
        elif line.startswith("\\"):
            _unend(sides, hunk_line=last)
        elif line:
            for side, marks in zip(sides, (" -", " +"), strict=True):
                if line[0] in marks:
                    side.append(line[1:] + "\n")
        last = line
    _finish(hunks, start, sides)
    return FileChange(old_path, new_path, tuple(hunks), text)


def _paths(header: list[str]) -> tuple[str, str]:
    names = {"---": "", "+++": ""}
    for line in header:
        mark, _, path = line.partition(" ")
        if mark in names and path.strip() != "/dev/null":
            names[mark] = path.rstrip("\t")[2:]
    same = _SAME.match(header[0])
    if same and not any(names.values()):  # binary, or modes alone
        return same[1], same[1]
    return names["---"], names["+++"]


def _finish(hunks: list[Hunk], start: int, sides: tuple[list[str], list[str]]) -> None:
    if any(sides):
        hunks.append(Hunk(start, "".join(sides[0]), "".join(sides[1])))


def _unend(sides: tuple[list[str], list[str]], hunk_line: str) -> None:
    """Remove the line end before git's mark for a file without a final line end."""
    for side, marks in zip(sides, (" -", " +"), strict=True):
        if hunk_line[:1] in marks and side:
            side[-1] = side[-1].removesuffix("\n")


def _shared(one: list[str], other: list[str]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count

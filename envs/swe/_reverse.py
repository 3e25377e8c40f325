"""Reverses a patch: data sets of injected bugs publish the bug, whose reverse is the gold patch."""

from __future__ import annotations

import re

from trajgym.envs.swe._errors import InvalidTask

__all__ = ["reverse_patch"]

_HUNK = re.compile(r"^@@ -(\S+) \+(\S+) @@(.*)$", re.DOTALL)
_SWAPPED = {
    "old mode ": "new mode ",
    "new mode ": "old mode ",
    "new file mode ": "deleted file mode ",
    "deleted file mode ": "new file mode ",
    "rename from ": "rename to ",
    "rename to ": "rename from ",
}


def reverse_patch(patch: str, where: str = "patch") -> str:
    """Return the reverse of a patch, as `git apply --reverse` would apply it.

    Raises:
        InvalidTask: a binary change, which does not contain the old content, or a copy.
    """
    out: list[str] = []
    block: tuple[list[str], list[str]] = ([], [])
    hunk_left = (0, 0)
    previous = ""
    for line in patch.splitlines(keepends=True):
        if hunk_left != (0, 0) or (line.startswith("\\") and any(block)):
            hunk_left = _hunk_line(line, previous, hunk_left, block, out)
            previous = line[:1] if line[:1] != "\\" else previous
            continue
        _flush(block, out)
        if match := _HUNK.match(line):
            out.append(f"@@ -{match[2]} +{match[1]} @@{match[3]}")
            hunk_left = (_count(match[1]), _count(match[2]))
        else:
            out.append(_header(line, where))
    _flush(block, out)
    return _ordered("".join(out))


def _hunk_line(
    line: str,
    previous: str,
    left: tuple[int, int],
    block: tuple[list[str], list[str]],
    out: list[str],
) -> tuple[int, int]:
    """Process one line of a hunk; return how many lines of either side remain."""
    mark, rest = line[:1], line[1:]
    old, new = left
    if mark == "-":
        block[1].append(f"+{rest}")
        return old - 1, new
    if mark == "+":
        block[0].append(f"-{rest}")
        return old, new - 1
    if mark == "\\" and previous in {"-", "+"}:
        block[previous == "-"].append(line)
        return left
    _flush(block, out)
    out.append(line)
    return left if mark == "\\" else (old - 1, new - 1)


def _flush(block: tuple[list[str], list[str]], out: list[str]) -> None:
    """Write removed lines before added ones, as git does."""
    for side in block:
        out.extend(side)
        side.clear()


def _count(span: str) -> int:
    _, comma, count = span.partition(",")
    return int(count) if comma else 1


def _header(line: str, where: str) -> str:
    if line.startswith(("GIT binary patch", "Binary files ", "copy from ")):
        raise InvalidTask(f"{where}: a binary or copying patch can't be reversed: {line.strip()}")
    for old, new in _SWAPPED.items():
        if line.startswith(old):
            return new + line[len(old) :]
    if line.startswith(("--- ", "+++ ")):
        return _swap_name(line)
    if line.startswith("index "):
        hashes, blank, mode = line[6:].rstrip("\n").partition(" ")
        first, _, second = hashes.partition("..")
        return f"index {second}..{first}{blank}{mode}\n"
    return line


def _swap_name(line: str) -> str:
    mark = "+++ " if line.startswith("--- ") else "--- "
    name = line[4:]
    for side, other in (("a/", "b/"), ("b/", "a/")):
        if name.startswith(side):
            return mark + other + name[2:]
    return mark + name


def _ordered(patch: str) -> str:
    """Restore git's order of pairs of header lines."""
    pairs = (("+++ ", "--- "), ("new mode ", "old mode "), ("rename to ", "rename from "))
    lines = patch.splitlines(keepends=True)
    at = 0
    in_hunk = (0, 0)
    while at + 1 < len(lines):
        if in_hunk != (0, 0):
            mark = lines[at][:1]
            old, new = in_hunk
            in_hunk = (old - (mark in "- \n"), new - (mark in "+ \n")) if mark != "\\" else in_hunk
        elif match := _HUNK.match(lines[at]):
            in_hunk = (_count(match[1]), _count(match[2]))
        elif any(lines[at].startswith(a) and lines[at + 1].startswith(b) for a, b in pairs):
            lines[at], lines[at + 1] = lines[at + 1], lines[at]
            at += 1
        at += 1
    return "".join(lines)

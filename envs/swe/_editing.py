"""Edits of text files, as functions of their content; preserves bytes that are not UTF-8."""

from __future__ import annotations

from trajgym.envs import ToolError

__all__ = ["inserted", "numbered", "replaced", "rest_of", "shortened"]

_SHOWN_LINES = 20


def decode(data: bytes) -> str:
    """Return the text of a file; :func:`encode` gives the same bytes back."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """Return the bytes of a text that :func:`decode` gave."""
    return text.encode("utf-8", "surrogateescape")


def replaced(text: str, old: str, new: str, path: str) -> tuple[str, int]:
    """Return the text with the only occurrence of ``old`` replaced, and its line number.

    In a file whose lines end in CRLF, ``old`` and ``new`` may be given with plain line ends.

    Raises:
        ToolError: ``old`` is empty, does not occur, occurs more than once, or equals ``new``.
    """
    if not old:
        raise ToolError("old is empty; use create for a new file or insert to add lines")
    if old == new:
        raise ToolError("old and new are equal; nothing would change")
    if old not in text and "\r\n" in text:
        old, new = _crlf(old), _crlf(new)
    lines = _occurrences(text, old)
    if not lines:
        raise ToolError(f"old does not occur in {path}; it must match exactly, blanks included")
    if len(lines) > 1:
        where = ", ".join(map(str, lines[:_SHOWN_LINES]))
        raise ToolError(
            f"old occurs {len(lines)} times in {path}, at lines {where}; add lines around it to "
            "make it unique",
        )
    return text.replace(old, new, 1), lines[0]


def inserted(text: str, line: int, addition: str, path: str) -> str:
    """Return the text with whole lines added after line number ``line`` (0: at the top).

    Raises:
        ToolError: the file has no such line.
    """
    lines = _split(text)
    if not 0 <= line <= len(lines):
        raise ToolError(f"{path} has {len(lines)} lines; line must be between 0 and {len(lines)}")
    end = "\r\n" if "\r\n" in text else "\n"
    if end == "\r\n":
        addition = _crlf(addition)
    if not addition.endswith(end):
        addition += end
    if line and not lines[line - 1].endswith("\n"):
        lines[line - 1] += end
    return "".join([*lines[:line], addition, *lines[line:]])


def numbered(text: str, start: int, end: int | None, path: str) -> str:
    """Return lines ``start`` to ``end`` (from 1, both included; None: to the end), numbered.

    Raises:
        ToolError: the range is empty or outside the file.
    """
    lines = _split(text)
    last = len(lines) if end is None else min(end, len(lines))
    if not lines:
        return f"{path} is empty"
    if not 1 <= start <= len(lines) or last < start:
        raise ToolError(f"{path} has {len(lines)} lines; {start} to {end} is not a range in it")
    shown = (f"{number:6}\t{lines[number - 1].rstrip()}" for number in range(start, last + 1))
    return "\n".join(shown)


def rest_of(text: str, start: int, window: int) -> str:
    """Return a note about lines outside a window that begins at ``start``, or an empty string."""
    total = len(_split(text))
    last = min(total, start + window - 1)
    if start == 1 and last == total:
        return ""
    return f"[lines {start} to {last} of {total}]"


def shortened(data: bytes, limit: int, dropped: int = 0) -> str:
    """Return output as text, its middle replaced by a mark if it is longer than ``limit`` bytes.

    Args:
        data: the output that was kept; bytes that are not UTF-8 become U+FFFD.
        limit: bytes to keep, half of them from the end.
        dropped: bytes that were already left out of the middle of ``data``.
    """
    if len(data) <= limit and not dropped:
        return data.decode("utf-8", "replace")
    half = min(limit, len(data)) // 2
    head, tail = data[:half], data[len(data) - half :]
    left_out = len(data) - 2 * half + dropped
    mark = f"\n[... {left_out} bytes left out ...]\n"
    return head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace")


def _split(text: str) -> list[str]:
    """Split at line feeds only: editors count lines that way."""
    lines = text.split("\n")
    ended = [f"{line}\n" for line in lines[:-1]]
    return [*ended, lines[-1]] if lines[-1] else ended


def _crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _occurrences(text: str, part: str) -> list[int]:
    """Return the line numbers at which ``part`` begins, overlaps included."""
    found, at = [], text.find(part)
    while at >= 0:
        found.append(text.count("\n", 0, at) + 1)
        at = text.find(part, at + 1)
    return found

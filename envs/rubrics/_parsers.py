r"""Parsers of answers: each returns what it finds in a text, or None if it finds nothing.

The running time is linear in the length of the text, for any input.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["boxed", "choice", "code_block", "json_value", "last_number", "tagged"]

_BOXED = "\\boxed{"
_NUMBER = re.compile(r"(?<![\w.])([+-]?)(\d+(?:[.,]\d+)*)((?:[eE][+-]?\d+)?)(\w*)")
"""Sign, digits with points and commas, exponent, and what makes it part of a word."""
_THOUSANDS = re.compile(r"(?!0)\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL_COMMA = re.compile(r"\d+,\d+|(?!0)\d{1,3}(?:\.\d{3})+,\d+")
_PLAIN = re.compile(r"\d+(?:\.\d+)?")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^\n`]*)$")
_OPENING = re.compile(r"[{\[]")
_MOST_TRIES = 1000
"""The maximum number of opening brackets at which JSON decoding is tried."""


def boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}``, up to the matching brace."""
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    depth = 1
    begin = start + len(_BOXED)
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin:at].strip()
    return None


def tagged(text: str, tag: str = "answer") -> str | None:
    """Return the content of the last ``<tag>...</tag>``, without surrounding whitespace."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    end = text.rfind(closing)
    start = text.rfind(opening, 0, max(end, 0))
    return None if start < 0 else text[start + len(opening) : end].strip()


def last_number(text: str) -> float | None:
    """Return the last number: integer or decimal, exponents allowed.

    Commas before groups of exactly three digits separate thousands: ``1,234`` is 1234, and
    ``1,234.5`` is 1234.5. Any other single comma between digits is a decimal comma: ``3,14`` is
    3.14, ``0,125`` is 0.125, and ``1.234,5`` is 1234.5. Numbers that several commas separate are a
    list, of which the last one counts: ``1,2,3`` is 3.
    """
    found = None
    for sign, digits, exponent, rest in _NUMBER.findall(text):
        if not rest and (plain := _plain(digits)) is not None:
            found = f"{sign}{plain}{exponent}"
    return None if found is None else float(found)


def _plain(digits: str) -> str | None:
    """Return digits with a decimal point at most; None if they are no number, as in 3.2.1."""
    if "," not in digits:
        return digits if _PLAIN.fullmatch(digits) else None
    if _THOUSANDS.fullmatch(digits):
        return digits.replace(",", "")
    if _DECIMAL_COMMA.fullmatch(digits):
        return digits.replace(".", "").replace(",", ".")
    items = [item for item in digits.split(",") if _PLAIN.fullmatch(item)]
    return items[-1] if items else None


def json_value(text: str) -> Any:
    """Return the last JSON object or array in a text, inside or outside a code block.

    Of nested values, the outermost is returned. NaN and infinities are rejected.
    """
    decoder = json.JSONDecoder(parse_constant=_refuse)
    found: Any = None
    at = tries = 0
    while (opening := _OPENING.search(text, at)) is not None and tries < _MOST_TRIES:
        tries += 1
        try:
            found, at = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            at = opening.end()
    return found


def choice(text: str, letters: str = "ABCD") -> str | None:
    r"""Return the letter that a multiple-choice answer selects, in upper case.

    The forms are tried in this order: ``\boxed{B}``, ``<answer>B</answer>``, a text that consists
    of the letter alone, and ``the answer is (B)`` or ``answer: B``. If a form occurs several
    times, the last occurrence is used.

    Args:
        text: the answer.
        letters: the valid letters.
    """
    one = f"[{re.escape(letters)}]"
    alone = re.compile(rf"\W*({one})\W*", re.IGNORECASE)
    for part in (boxed(text), tagged(text), text):
        if part is not None and (match := alone.fullmatch(part.strip())) is not None:
            return match[1].upper()
    named = rf"\banswer(?:\s+is)?\s*[:=]?\s*[(\[*]{{0,3}}({one})\b"
    found = re.findall(named, text, re.IGNORECASE)
    return found[-1].upper() if found else None


def code_block(text: str, language: str | None = None) -> str | None:
    """Return the content of the last closed Markdown code block.

    Args:
        text: the answer.
        language: consider only blocks of this language, ignoring case; None accepts any block.
    """
    found = None
    for marked, content in _blocks(text):
        if language is None or marked.casefold() == language.casefold():
            found = content
    return found


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the content of each closed block."""
    fence, language, lines = "", "", list[str]()
    for line in text.splitlines():
        match = _FENCE.match(line)
        if not fence:
            if match is not None:
                fence, language, lines = match[1], match[2].strip().partition(" ")[0], []
        elif match is not None and match[1].startswith(fence) and not match[2].strip():
            yield language, "\n".join(lines)
            fence = ""
        else:
            lines.append(line)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")

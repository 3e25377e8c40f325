"""Texts that are searched, and queries in the words of a user."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trajgym.trajectory._messages import text_of, tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["match_of", "reason_of", "turn_text", "words_of"]

_MOST_CHARS = 100_000
"""Text of one message that is searched; the rest of a longer one is left out."""
_MOST_REASON = 160
_TERM = re.compile(r'(-?)"([^"]*)"|(\S+)')
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b|\d+(?:\.\d+)?")


def turn_text(turn: Mapping[str, Any]) -> str:
    """Return the text of a stored turn: what is new in its context, its message, its results."""
    return "\n".join(_parts(turn))


def _parts(turn: Mapping[str, Any]) -> Iterator[str]:
    message = turn["message"]
    for one in (*turn.get("context", ()), message, *turn.get("observation", ())):
        yield text_of(one)[:_MOST_CHARS]
    yield str(message.get("reasoning_content") or "")[:_MOST_CHARS]
    for call in tool_calls_of(message):
        yield call["function"]["name"]
        yield call["function"]["arguments"][:_MOST_CHARS]


def match_of(query: str) -> str:
    """Return an FTS5 expression for a query: words by their start, "phrases", -without.

    It is empty if the query contains no word.
    """
    wanted: list[str] = []
    unwanted: list[str] = []
    for minus, phrase, word in _TERM.findall(query):
        without = bool(minus) or (word.startswith("-") and len(word) > 1)
        text = phrase or (word[1:] if without else word)
        if not re.search(r"\w", text):
            continue
        term = '"{}"{}'.format(text.replace('"', '""').replace("\0", ""), "" if phrase else " *")
        (unwanted if without else wanted).append(term)
    if not wanted:
        return ""
    found = " AND ".join(wanted)
    return f"({found}) NOT ({' OR '.join(unwanted)})" if unwanted else found


def words_of(query: str) -> list[str]:
    """Return the words and phrases that a match of a query contains, in lower case."""
    return [
        (phrase or word).casefold()
        for minus, phrase, word in _TERM.findall(query)
        if not minus and not word.startswith("-") and re.search(r"\w", phrase or word)
    ]


def reason_of(cause: str) -> str:
    """Return a cause without what differs from case to case: its first line, numbers as ``N``."""
    line = next((one.strip() for one in cause.splitlines() if one.strip()), "")
    return _VARYING.sub("N", line)[:_MOST_REASON]

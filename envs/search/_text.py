"""Words of queries, and the wire form of passages."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.envs.search._engine import Passage

__all__ = [
    "STOP_WORDS",
    "contents_of",
    "estimate_tokens",
    "has_words",
    "passage_id",
    "split_contents",
    "words",
]

_WORD = re.compile(r"[^\W_]+")
_TOKEN = re.compile(r"\w+|[^\w\s]")
_MOST_WORDS = 64

_STOP_WORDS = """
a about above after again all also am an and any are as at be because been before being
below between both but by can could did do does doing down during each few for from further
had has have having he her here hers him his how i if in into is it its itself just me more
most my no nor not of off on once only or other our out over own same she should so some such
than that the their them then there these they this those through to too under until up very
was we were what when where which while who whom whose why will with would you your s t
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words that occur in nearly every passage: costly to search, and without effect on the ranking."""


def words(query: str) -> list[str]:
    """Return the distinct words of a query in lower case, stop words left out.

    If a query has only stop words they are kept. At most 64 words count.
    """
    found = list(dict.fromkeys(word.lower() for word in _WORD.findall(query)))
    return ([word for word in found if word not in STOP_WORDS] or found)[:_MOST_WORDS]


def has_words(query: str) -> bool:
    """Return whether a query has a word."""
    return _WORD.search(query) is not None


def passage_id(title: str, text: str) -> str:
    """Return an id for a passage without one: 12 hex digits of the hash of its content."""
    return hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()[:12]


def contents_of(passage: Passage) -> str:
    """Return the wire form: the quoted title, a line end, the text."""
    return f'"{passage.title}"\n{passage.text}'


def split_contents(contents: str) -> tuple[str, str]:
    """Return title and text of the wire form; without a title line the title is empty."""
    first, separator, rest = contents.partition("\n")
    if separator:
        return first.strip().strip('"'), rest
    return "", contents


def estimate_tokens(text: str) -> Iterable[re.Match[str]]:
    """Split a text into pieces of about one token each, with their positions.

    A word of more than eight letters is one piece all the same: a model's tokenizer makes some
    more of them, in English about 1.2 to 1.4 tokens per piece.
    """
    return _TOKEN.finditer(text)

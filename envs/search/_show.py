"""Passages formatted for the agent, limited in tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from trajgym.envs.search._pages import sections_of
from trajgym.envs.search._text import estimate_tokens
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs.search._engine import Hit, Passage
    from trajgym.envs.search._pages import Section

__all__ = ["Page", "TokenCounter", "counter_for", "page_of", "show_document", "show_hits"]


class TokenCounter(Protocol):
    """Reports where the tokens of a text end."""

    def ends(self, text: str) -> list[int]:
        """Return the end of every token in the text, as character offsets in order."""


class _Estimate:
    def ends(self, text: str) -> list[int]:
        return [piece.end() for piece in estimate_tokens(text)]


class _Tokenizer:
    def __init__(self, file: str) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtra("tokenizers", "search-dense") from error
        try:
            self._tokenizer = Tokenizer.from_file(file)
        except Exception as error:  # the library raises nothing narrower
            raise InvalidInput(f"tokenizer {file!r} can't be read: {error}") from error

    def ends(self, text: str) -> list[int]:
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return [end for _, end in encoded.offsets]


_counters: dict[str | None, TokenCounter] = {None: _Estimate()}


def counter_for(file: str | None) -> TokenCounter:
    """Return the counter of a ``tokenizer.json``, or one that estimates (about one per word).

    Raises:
        InvalidInput: the file can't be read.
        MissingExtra: `tokenizers` is not installed.
    """
    if file not in _counters:
        _counters[file] = _Tokenizer(str(file))
    return _counters[file]


class Page(NamedTuple):
    """Part of a longer text."""

    text: str
    number: int
    """From 1."""
    pages: int


def page_of(text: str, number: int, tokens: int, counter: TokenCounter) -> Page:
    """Return the page ``number`` (from 1) of a text cut into pages of so many tokens."""
    ends = counter.ends(text)
    pages = max(1, -(-len(ends) // tokens))
    number = min(max(1, number), pages)
    start = ends[(number - 1) * tokens - 1] if number > 1 else 0
    end = ends[number * tokens - 1] if number * tokens < len(ends) else len(text)
    return Page(text[start:end].strip(), number, pages)


def show_document(
    passage: Passage, window: int, section: str, tokens: int, counter: TokenCounter
) -> str:
    """Return a window of a document, or of one of its sections.

    A document with several sections that does not fit into one window begins with a list of them.

    Raises:
        LookupError: there is no such section; the message lists the sections.
    """
    sections = sections_of(passage.text)
    listed = _outline(sections, tokens // 2, counter) if len(sections) > 1 else ""
    text, title = passage.text, passage.title
    if section.strip():
        chosen = _section(sections, section.strip(), listed)
        text, title = chosen.text, " - ".join(filter(None, (passage.title, chosen.title)))
    elif listed and len(counter.ends(text)) > tokens:
        text = f"{listed}\n{text}"
    page = page_of(text, window, tokens, counter)
    return f"{title}\n{page.text}\n[window {page.number} of {page.pages}]"


def _section(sections: Sequence[Section], wanted: str, listed: str) -> Section:
    if wanted.isdecimal() and 1 <= int(wanted) <= len(sections):
        return sections[int(wanted) - 1]
    for found in sections:
        if found.title.casefold() == wanted.casefold():
            return found
    raise LookupError(
        f"there is no section {wanted!r}; " + (listed or "the document has no sections")
    )


def _outline(sections: Sequence[Section], tokens: int, counter: TokenCounter) -> str:
    names = "; ".join(
        f"{number} {found.title or 'introduction'}" for number, found in enumerate(sections, 1)
    )
    page = page_of(names, 1, max(1, tokens), counter)
    return f"Sections: {page.text}{'' if page.pages == 1 else ' [...]'}"


def show_hits(hits: Sequence[Hit], tokens: int, counter: TokenCounter, *, ids: bool) -> str:
    """Return hits as numbered documents of ``tokens`` tokens in all, shared between them.

    Tokens that a short passage does not need are given to the longer ones.

    Args:
        hits: best first.
        tokens: maximum number of tokens in total.
        counter: counts them.
        ids: show the id that ``open`` takes.
    """
    shares = _shares([len(counter.ends(hit.passage.text)) for hit in hits], tokens)
    return "\n".join(
        _shown(number, hit.passage, share, counter, ids)
        for number, (hit, share) in enumerate(zip(hits, shares, strict=True), 1)
    )


def _shown(number: int, passage: Passage, share: int, counter: TokenCounter, ids: bool) -> str:
    head = f"Doc {number} (Title: {passage.title or 'none'})"
    if ids:
        head = f"{head} [doc: {passage.id}]"
    page = page_of(passage.text, 1, max(1, share), counter)
    more = "" if page.pages == 1 else " [...]"
    return f"{head} {page.text}{more}"


def _shares(lengths: Sequence[int], total: int) -> list[int]:
    """Divide tokens evenly; what short passages don't need is divided among the long ones."""
    shares = [0] * len(lengths)
    left = total
    for position, index in enumerate(sorted(range(len(lengths)), key=lambda i: lengths[i])):
        shares[index] = min(lengths[index], left // (len(lengths) - position))
        left -= shares[index]
    return shares

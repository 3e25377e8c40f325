"""Text analysis for BM25: settings, and the analyser that applies them."""

from __future__ import annotations

import re
import unicodedata
from itertools import chain
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from trajgym.envs.search._text import STOP_WORDS
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Analyzer", "BM25Settings"]

_MOST_WORDS = 500_000
_MARK = "~"


def _pattern(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    if groups > 1:
        raise ValueError("at most one group may be captured; write (?:...)")
    return text


class BM25Settings(BaseModel):
    """How BM25 analyses and scores text; an index records the settings it was built with.

    ``benchmarks/bench_search_quality.py`` compares settings. The default finds most over all of its
    collections: it indexes words and their stems, and splits identifiers at underscores.

    Attributes:
        k1: how fast repeated words saturate.
        b: how much long passages are discounted, 0.0 to 1.0.
        token_pattern: regular expression whose matches are the words of lower-cased text.
        stemmer: Snowball language, such as ``english``, that reduces words to their stems;
            None keeps words as they are, in half the space. Needs PyStemmer.
        keep_words: with a stemmer, also index the unstemmed words: an exact match then ranks above
            a match of the stem alone.
        stop_words: words to leave out; True selects a list of English ones.
        fold_accents: read ``é`` as ``e``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    k1: float = Field(default=1.2, ge=0)
    b: float = Field(default=0.75, ge=0, le=1)
    token_pattern: Annotated[str, AfterValidator(_pattern)] = r"[^\W_]+"  # noqa: S105
    stemmer: str | None = "english"
    keep_words: bool = True
    stop_words: bool | tuple[str, ...] = False
    fold_accents: bool = True


class Analyzer:
    """Turns text into terms; queries and passages must be analysed with the same settings.

    Args:
        settings: how to analyse.

    Raises:
        MissingExtra: a stemmer is selected and PyStemmer is not installed.
        InvalidInput: there is no such stemmer.
    """

    def __init__(self, settings: BM25Settings) -> None:
        self._find = re.compile(settings.token_pattern).findall
        self._fold = settings.fold_accents
        stop = settings.stop_words
        self._stop = STOP_WORDS if stop is True else frozenset(stop or ())
        self._stem = _stemmer(settings.stemmer) if settings.stemmer else None
        self._keep = settings.keep_words
        self._known: dict[str, tuple[str, ...]] = {}

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text in order, repeated ones included."""
        words = self.words(text)
        if self._stem is None:
            return words
        known = self._known
        if len(known) > _MOST_WORDS:
            known.clear()
        for word in words:
            if word not in known:
                known[word] = self.forms(word)
        return list(chain.from_iterable(map(known.__getitem__, words)))

    def words(self, text: str) -> list[str]:
        """Return the words of a text in order, without stop words."""
        text = text.lower()
        if self._fold and not text.isascii():
            text = _without_accents(text)
        words: list[str] = self._find(text)
        return [word for word in words if word not in self._stop] if self._stop else words

    def forms(self, word: str) -> tuple[str, ...]:
        """Return the terms that a word stands for."""
        if self._stem is None:
            return (word,)
        # Marked, since the stem of one word may be another word.
        stem = _MARK + self._stem(word)
        return (word, stem) if self._keep else (stem,)


def _stemmer(language: str) -> Callable[[str], str]:
    try:
        import Stemmer
    except ImportError as error:
        raise MissingExtra("PyStemmer", "search") from error
    try:
        # The cache of PyStemmer is slower than a plain dictionary.
        stem: Callable[[str], str] = Stemmer.Stemmer(language, 0).stemWord
    except KeyError as error:
        known = ", ".join(Stemmer.algorithms())
        raise InvalidInput(f"stemmer {language!r}: unknown; use one of {known}") from error
    return stem


def _without_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(c for c in decomposed if not unicodedata.combining(c))

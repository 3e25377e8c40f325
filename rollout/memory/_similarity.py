"""Similarity of short texts: cosine of TF-IDF vectors, kept in memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from heapq import nlargest
from math import log, sqrt
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs.search import BM25Settings
from trajgym.envs.search._analysis import Analyzer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Near", "SimilarityIndex"]

_FREQUENT = 0.05
"""Share of the texts from which a word is frequent."""
_MARGIN = 1e-9
"""For rounding."""


class Near(NamedTuple):
    """A text of the index, and its similarity to the query."""

    row: int
    similarity: float
    """0.0 to 1.0."""


class SimilarityIndex:
    """Finds similar texts among some thousands.

    Words are read as the search environment's BM25 reads them. The measure is not BM25, whose
    scores depend on the lengths of query and texts: records are merged and left out at a fixed
    similarity, which the cosine has. The inverse document frequency is smoothed,
    ``log((1 + N) / (1 + df)) + 1``, so that a word that all texts share still counts.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._words = Analyzer(BM25Settings(stemmer=None, stop_words=True)).terms
        counts = [Counter(self._words(text)) for text in texts]
        self._texts = len(counts)
        self._df = Counter(word for found in counts for word in found)
        self._postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._vectors = [self._weights(found) for found in counts]
        for row, vector in enumerate(self._vectors):
            for word, weight in vector.items():
                self._postings[word].append((row, weight))

    def search(
        self,
        text: str,
        k: int | None = None,
        *,
        least: float = 0.0,
        wanted: Callable[[int], bool] = lambda _: True,
    ) -> list[Near]:
        """Return the most similar texts that share a word with the query, best first.

        Args:
            text: the query.
            k: most texts to return; None returns all.
            least: least similarity.
            wanted: whether a row may be returned.
        """
        asked = self._weights(Counter(self._words(text)))
        common = self._common(asked, least)
        scores: dict[int, float] = defaultdict(float)
        for word, weight in asked.items():
            if word not in common:
                for row, other in self._postings.get(word, ()):
                    scores[row] += weight * other
        missing = sqrt(sum(asked[word] ** 2 for word in common)) + _MARGIN
        for row, score in scores.items():
            if score + missing >= least:
                vector = self._vectors[row]
                scores[row] += sum(asked[word] * vector.get(word, 0.0) for word in common)
        found = [
            Near(row, min(score, 1.0))
            for row, score in scores.items()
            if score >= least and wanted(row)
        ]
        return nlargest(len(found) if k is None else k, found, key=lambda one: (one[1], -one[0]))

    def _common(self, asked: dict[str, float], least: float) -> set[str]:
        """Return frequent words that can't give the least similarity by themselves.

        By the Cauchy-Schwarz inequality, texts that share only these words with the query have at
        most the norm of its weights for them as similarity; so they need not be looked at.
        """
        common: set[str] = set()
        left = least * least - _MARGIN
        for word in sorted(asked, key=lambda word: -self._df[word]):
            left -= asked[word] ** 2
            if left <= 0 or self._df[word] <= _FREQUENT * self._texts:
                break
            common.add(word)
        return common

    def _weights(self, counts: Counter[str]) -> dict[str, float]:
        """Return the vector of a text, of length 1."""
        raw = {
            word: (1 + log(count)) * (log((1 + self._texts) / (1 + self._df[word])) + 1)
            for word, count in counts.items()
        }
        norm = sqrt(sum(weight * weight for weight in raw.values()))
        return {word: weight / norm for word, weight in raw.items()}

"""Ids and the text that they decode to, with positions in one found in the other."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["TokenText"]


class TokenText:
    """Decoded ids.

    Args:
        ids: the ids.
        decode: ids to text; decoding a prefix of the ids must give a prefix of the text, but for
            a character that is cut in the middle.
    """

    __slots__ = ("_decode", "_ids", "text")

    def __init__(self, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> None:
        self._ids = ids
        self._decode = decode
        self.text = decode(ids)

    def tokens_until(self, char: int) -> int:
        """Return the least number of ids whose text holds ``text[:char]``."""
        if char <= 0:
            return 0
        if char >= len(self.text):
            return len(self._ids)
        wanted = self.text[:char]
        counts = range(len(self._ids))
        return bisect_left(counts, 1, key=lambda n: self._decode(self._ids[:n])[:char] == wanted)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the ids ``[first, last)`` that hold any of ``text[start:end]``."""
        first = max(self.tokens_until(start + 1) - 1, 0)
        return first, self.tokens_until(end)

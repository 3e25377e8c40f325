"""Mapping positions in decoded text to token ids."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["TokenText"]


class TokenText:
    """Ids and their text.

    Args:
        ids: the ids.
        decode: converts ids to text; decoding a prefix of the ids must give a prefix of the text,
            except for a character that is split.
    """

    __slots__ = ("_decode", "_ids", "_starts", "text")

    def __init__(self, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> None:
        self._ids = ids
        self._decode = decode
        self.text = decode(ids)
        self._starts: dict[int, str] = {}

    def tokens_until(self, char: int) -> int:
        """Return the smallest number of ids whose text contains ``text[:char]``."""
        if char <= 0:
            return 0
        if char >= len(self.text):
            return len(self._ids)
        wanted = self.text[:char]
        counts = range(len(self._ids))
        return bisect_left(counts, 1, key=lambda n: self._start(n)[:char] == wanted)

    def _start(self, count: int) -> str:
        """Return the text of the first ids; kept, because searches begin at the same places."""
        text = self._starts.get(count)
        if text is None:
            text = self._starts[count] = self._decode(self._ids[:count])
        return text

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the range ``[first, last)`` of ids that cover ``text[start:end]``."""
        first = max(self.tokens_until(start + 1) - 1, 0)
        return first, self.tokens_until(end)

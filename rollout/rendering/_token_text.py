"""Mapping positions in decoded text to token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TokenText"]


class TokenText:
    """Ids and their text.

    Args:
        ids: the ids.
        decode: converts ids to text; decoding a prefix of the ids must give a prefix of the text,
            except for a character that is split.
    """

    __slots__ = ("_decode", "_ids", "_starts", "text")

    def __init__(self, ids: list[int], decode: Callable[[list[int]], str]) -> None:
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
        # Every try decodes, so the number is guessed from how many characters an id has so far.
        low, high = 0, len(self._ids)
        ids, chars = high, len(self.text)
        found = False
        for tries in range(1, high + 1):
            if high - low <= 1:
                break
            if tries % 4 == 0:  # so that it ends soon, however the ids' texts differ in length
                guess = (low + high) // 2
            elif found:
                guess = high - 1  # a guess that suffices is mostly the smallest one
            else:
                guess = char * ids // chars
            at = min(max(guess, low + 1), high - 1)
            start = self._start(at)
            if start[:char] == wanted:
                high, found = at, not found
            else:
                low, found = at, False
                if start:
                    ids, chars = at, len(start)
        return high

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

"""The set itself."""

from bisect import bisect_left, bisect_right


class SpanSet:
    """A set of integers, kept as sorted and disjoint half-open spans ``(start, stop)``."""

    def __init__(self, spans=()):
        self._spans = []
        for start, stop in spans:
            self.add(start, stop)

    def __eq__(self, other):
        if not isinstance(other, SpanSet):
            return NotImplemented
        return self._spans == other._spans

    def __hash__(self):
        raise TypeError("a SpanSet can change and has no hash")

    def __repr__(self):
        return f"SpanSet({self._spans!r})"

    def __iter__(self):
        for start, stop in self._spans:
            yield from range(start, stop)

    def __len__(self):
        return sum(stop - start for start, stop in self._spans)

    def __contains__(self, number):
        index = bisect_right(self._spans, (number, float("inf"))) - 1
        return index >= 0 and number < self._spans[index][1]

    @property
    def spans(self):
        """The spans in order; no two of them touch."""
        return tuple(self._spans)

    def add(self, start, stop):
        """Add all integers from ``start`` up to, but not including, ``stop``."""
        _check(start, stop)
        if start == stop:
            return
        first, last = self._touching(start, stop)
        if first < last:
            start = min(start, self._spans[first][0])
            stop = max(stop, self._spans[last - 1][1])
        self._spans[first:last] = [(start, stop)]

    def discard(self, start, stop):
        """Take out all integers from ``start`` up to, but not including, ``stop``."""
        _check(start, stop)
        if start == stop:
            return
        kept = []
        for left, right in self._spans:
            if right <= start or left >= stop:
                kept.append((left, right))
                continue
            if left < start:
                kept.append((left, start))
            elif right > stop:
                kept.append((stop, right))
        self._spans = kept

    def gaps(self, start, stop):
        """Return the parts of ``start`` to ``stop`` that the set does not cover."""
        _check(start, stop)
        found = []
        at = start
        for left, right in self._spans:
            if right <= at:
                continue
            if left >= stop:
                break
            if left > at:
                found.append((at, left))
            at = right
        if at < stop:
            found.append((at, stop))
        return found

    def _touching(self, start, stop):
        """Return the range of indices whose spans overlap or touch ``start`` to ``stop``."""
        first = bisect_left(self._spans, (start, start))
        if first and self._spans[first - 1][1] > start:
            first -= 1
        last = bisect_left(self._spans, (stop, stop))
        return first, last


def _check(start, stop):
    if stop < start:
        raise ValueError(f"a span can't end before it starts: {start} to {stop}")

"""Spans as text: ``1-3,7`` means 1, 2, 3 and 7."""

from spans._set import SpanSet


def parse_spans(text):
    """Read a list such as ``1-3,7``; both ends of a range are part of it."""
    result = SpanSet()
    for part in text.split(","):
        part = part.strip()
        if not part:
            continue
        first, dash, last = part.partition("-")
        try:
            low = int(first)
            high = int(last) if dash else low
        except ValueError:
            raise ValueError(f"not a number or a range: {part!r}") from None
        result.add(low, high + 1)
    return result


def format_spans(spans):
    """Write a set the way :func:`parse_spans` reads it."""
    parts = []
    for start, stop in spans.spans:
        parts.append(str(start) if stop - start == 1 else f"{start}-{stop - 1}")
    return ",".join(parts)

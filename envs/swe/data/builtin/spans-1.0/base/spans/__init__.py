"""Sets of integers as half-open intervals."""

from spans._set import SpanSet
from spans._text import format_spans, parse_spans

__all__ = ["SpanSet", "format_spans", "parse_spans"]

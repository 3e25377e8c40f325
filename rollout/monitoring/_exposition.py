"""Lines of Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["family", "histogram", "single"]


def family(
    name: str, kind: str, text: str, label: str, values: Mapping[str, float] | Mapping[int, float]
) -> list[str]:
    """Return the lines of a metric with one label.

    Args:
        name: without the prefix ``trajgym_``.
        kind: ``counter`` or ``gauge``.
        text: its description.
        label: the label's name.
        values: by the label's value.
    """
    lines = _head(name, kind, text)
    for key, count in sorted(values.items(), key=lambda item: str(item[0])):
        shown = str(key).replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        lines.append(f'trajgym_{name}{{{label}="{shown}"}} {count}')
    return lines


def single(name: str, kind: str, text: str, value: float) -> list[str]:
    """Return the lines of a metric without labels."""
    return [*_head(name, kind, text), f"trajgym_{name} {value}"]


def histogram(
    name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float
) -> list[str]:
    """Return the lines of a histogram.

    Args:
        name: without the prefix ``trajgym_``.
        text: its description.
        bounds: upper bounds (inclusive), ascending.
        counts: observations per bucket; one more than bounds, the last is beyond all of them.
        total: sum of the observations.
    """
    sums = list(accumulate(counts))
    limits = [*map(str, bounds), "+Inf"]
    return [
        *_head(name, "histogram", text),
        *(f'trajgym_{name}_bucket{{le="{b}"}} {c}' for b, c in zip(limits, sums, strict=True)),
        f"trajgym_{name}_sum {total:.6f}",
        f"trajgym_{name}_count {sums[-1]}",
    ]


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP trajgym_{name} {text}", f"# TYPE trajgym_{name} {kind}"]

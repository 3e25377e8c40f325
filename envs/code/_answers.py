r"""Extracting final answers from messages, and comparing them with the reference."""

from __future__ import annotations

import math
import re
from typing import Literal, TypeAlias

from trajgym.envs.code._compare import equivalent
from trajgym.envs.rubrics import boxed as last_boxed

__all__ = ["Match", "is_right", "last_boxed"]

Match: TypeAlias = Literal["exact", "number", "math"]
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}")
_WRAPPER = re.compile(r"\\(?:text|mathrm|mathbf)\{([^{}]*)\}")


def is_right(answer: str, expected: str, match: Match, tolerance: float = 1e-6) -> bool:
    r"""Return whether an answer is the expected one.

    Args:
        answer: as the agent gave it.
        expected: the reference.
        match: ``exact`` compares text up to case and blanks; ``number`` also takes numbers that are
            equal within ``tolerance`` (``1/2``, ``0.5``, ``50%``, ``\frac{1}{2}``, ``1,000``);
            ``math`` asks the package ``math-verify`` (equivalent LaTeX expressions, sets,
            intervals); an answer that it can't compare in seconds is wrong.
        tolerance: relative.

    Raises:
        MissingExtra: ``math`` without ``trajgym[math]``.
    """
    if match == "math":
        return equivalent(answer, expected)
    said, right = _plain(answer), _plain(expected)
    if not said:
        return False
    if said.casefold() == right.casefold():
        return True
    if match == "exact":
        return False
    one, other = _number(said), _number(right)
    if one is None or other is None:
        return False
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=0.0)


def _plain(text: str) -> str:
    text = _WRAPPER.sub(r"\1", text.strip().strip("$").strip())
    text = text.replace("\\left", "").replace("\\right", "").replace("\\!", "").replace("\\,", " ")
    return " ".join(text.split()).rstrip(".")


def _number(text: str) -> float | None:
    text = _FRACTION.sub(r"\1/\2", text)
    percent = text.endswith("%")
    text = text.rstrip("%").rstrip("\\").strip().lstrip("$")
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    above, _, below = text.replace(" ", "").partition("/")
    try:
        # As floats: the exact value of 1e999999999 takes hours.
        value = float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        return None
    if not math.isfinite(value):
        return None
    return value / 100 if percent else value

"""Finding the method of a case, running it, and comparing what came out."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tests.vectors import _steps, _trees
from tests.vectors._build import Documented, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOLERANCE = 1e-6


class Result(NamedTuple):
    """What became of a case."""

    name: str
    status: Literal["pass", "fail", "unsupported"]
    detail: str = ""


def run_file(path: Path) -> list[Result]:
    """Run every case of a file."""
    document = json.loads(path.read_text())
    return [run_case(case, document) for case in document["cases"]]


def run_case(case: dict[str, Any], document: dict[str, Any]) -> Result:
    """Run one case."""
    name, inputs, expected = str(case["name"]), case["inputs"], case["expected"]
    if not isinstance(inputs, dict) or not isinstance(expected, dict):
        return Result(name, "unsupported", "inputs and expected are not objects")
    methods = (*_trees.METHODS, *_steps.METHODS)
    method = next((m for m in methods if m.fits(inputs, document)), None)
    if method is None:
        return Result(name, "unsupported", f"no method takes inputs {sorted(inputs)}")
    try:
        found = method.run(inputs, document)
    except Unsupported as error:
        return Result(name, "unsupported", f"{method.name}: {error}")
    except Exception as error:  # a case is a boundary: the others still run
        return Result(name, "fail", f"{method.name}: {type(error).__name__}: {error}")
    checked = {key: value for key, value in expected.items() if not key.endswith("UNVERIFIED")}
    missing = sorted(set(checked) - set(found))
    tolerance = float(document.get("tolerance", TOLERANCE))
    wrong = [
        difference
        for key, value in checked.items()
        if key in found
        for difference in differences(key, value, found[key], tolerance)
    ]
    if wrong:
        return Result(name, "fail", f"{method.name}: " + "; ".join(wrong[:3]))
    if missing:
        return Result(name, "unsupported", f"{method.name} gives no {', '.join(missing)}")
    notes = [value.note for value in found.values() if isinstance(value, Documented)]
    return Result(name, "pass", "; ".join(notes))


def differences(where: str, expected: Any, found: Any, tolerance: float) -> Iterator[str]:
    """Yield what differs; an expected null is a masked place, where anything goes."""
    if expected is None:
        return
    if isinstance(found, Documented):
        if not (isinstance(expected, str) and expected.startswith("raises")):
            yield f"{where}: expected {expected!r}, found {found.note}"
        return
    if isinstance(expected, dict) and isinstance(found, dict):
        for key, value in expected.items():
            if key in found:
                yield from differences(f"{where}.{key}", value, found[key], tolerance)
            else:
                yield f"{where}.{key}: not found"
        return
    if isinstance(found, np.ndarray | tuple):
        found = list(found)
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            yield f"{where}: expected {len(expected)} entries, found {len(found)}"
            return
        for i, (left, right) in enumerate(zip(expected, found, strict=True)):
            yield from differences(f"{where}[{i}]", left, right, tolerance)
        return
    numbers = (int, float, np.number, np.bool_)
    if isinstance(expected, numbers) and isinstance(found, numbers):
        if math.isfinite(found) and abs(float(expected) - float(found)) <= tolerance:
            return
    elif expected == found:
        return
    yield f"{where}: expected {expected!r}, found {found!r}"

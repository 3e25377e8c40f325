"""Fixtures that many test modules share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trajgym.trajectory import SessionTree

GOLDEN = Path(__file__).parent / "golden"
GOLDEN_NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))


def load_golden(name: str) -> tuple[SessionTree, dict[str, Any]]:
    """Return a hand-made session and what is expected of it."""
    document = json.loads((GOLDEN / f"{name}.json").read_text())
    parts = {key: document[key] for key in ("session", "turns", "attempts")}
    return SessionTree.from_json(parts), document["expect"]


@pytest.fixture(params=GOLDEN_NAMES)
def golden(request: pytest.FixtureRequest) -> tuple[SessionTree, dict[str, Any]]:
    """Every hand-made session in turn."""
    return load_golden(request.param)

"""One gradient for all trainers. `scripts/test-gradient.sh` makes the environments."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PYTHONS = {name: ROOT / f".venv-{name}" / "bin" / "python" for name in ("trl", "verl", "areal")}

if importlib.util.find_spec("areal") is None or not all(p.exists() for p in PYTHONS.values()):
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the libraries under these tests warn."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))

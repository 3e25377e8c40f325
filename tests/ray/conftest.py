"""Tests with real Ray clusters on this machine. `scripts/test-ray.sh` makes their environment."""

from __future__ import annotations

import importlib.util
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.ray.cluster import Nodes

# Read by Ray's processes, and by the environment of `tests.boxes` in them.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ["TRAJGYM_TEST_MARK"] = uuid.uuid4().hex

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let Ray warn."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Nodes]:
    """A cluster whose head has no room for sandboxes; this process is connected to it."""
    from tests.ray.cluster import Nodes

    nodes = Nodes()
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def nodes(cluster: Nodes) -> Iterator[Nodes]:
    """The same; the nodes that a test adds leave with it."""
    yield cluster
    cluster.clear()

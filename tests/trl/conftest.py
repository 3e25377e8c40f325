"""Tests against the real TRL, on a CPU. `scripts/test-trl.sh` makes their environment."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if importlib.util.find_spec("trl") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the libraries under these tests warn."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A two-layer model that answers with one short word, in a folder, and its tokenizer."""
    from tests.trl.tiny import make

    return make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def server(tiny: Any) -> Iterator[Any]:
    """A server that plays vLLM with the tiny model."""
    from tests.trl.server import serving

    with serving(tiny) as made:
        yield made


@pytest.fixture(scope="session")
def recorded(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Four groups of four sessions that the tiny model played, as they were recorded."""
    from tests.trl.runs import record

    return record(tiny, tmp_path_factory.mktemp("recorded"))

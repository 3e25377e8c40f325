"""Tests against the real verl, on a CPU. `scripts/test-verl.sh` makes their environment."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("TRANSFER_QUEUE_ENABLE", "1")
# Seconds and tries; by default it gives up within half a minute, which is little on a busy machine.
os.environ.setdefault("TQ_STORAGE_HANDSHAKE_TIMEOUT", "600")
os.environ.setdefault("TQ_STORAGE_HANDSHAKE_MAX_RETRIES", "600")
os.environ.setdefault("TQ_DATA_UPDATE_RESPONSE_TIMEOUT", "600")

if importlib.util.find_spec("verl") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the libraries under these tests warn."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.verl)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A two-layer model in a folder, and its tokenizer."""
    from tests.trl.tiny import make

    return make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def recorded(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Four groups of four sessions that the tiny model played, as they were recorded."""
    from tests.trl.runs import record

    return record(tiny, tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="session")
def chain(tiny: Any) -> Iterator[Any]:
    """Verl's V1 chain in a local Ray: workers, TransferQueue, replay buffer, rewards."""
    from tests.verl.chain import running

    with running(tiny) as made:
        yield made

"""Tests with the real vLLM on a CPU. `scripts/test-vllm.sh` makes their environment."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trajgym.rollout.engines import LocalVLLMEngine

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]

CONTEXT = 1024


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let vLLM warn."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


def options() -> dict[str, Any]:
    """Return the arguments of a small vLLM on a CPU."""
    return {
        "max_model_len": CONTEXT,
        "dtype": "float32",
        "enforce_eager": True,
        "kv_cache_memory_bytes": 1 << 28,
    }


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A two-layer model in a folder, and its tokenizer."""
    from tests.vllm.tiny import make

    return make(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(tiny: Any) -> AsyncIterator[LocalVLLMEngine]:
    """An engine whose updates abort requests."""
    from trajgym.rollout.engines import LocalVLLMEngine

    made = LocalVLLMEngine(tiny.path, **options())
    await made.start()
    yield made
    await made.close()


@pytest.fixture
def keeping(engine: LocalVLLMEngine) -> LocalVLLMEngine:
    """An engine over the same vLLM, whose updates keep requests."""
    from trajgym.rollout.engines import LocalVLLMEngine

    return LocalVLLMEngine.over(engine.llm, updates="keep")

"""Tests against the real AReaL, on a CPU. `scripts/test-areal.sh` makes their environment."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

for _name, _value in {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "RAY_AUTH_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
}.items():
    os.environ.setdefault(_name, _value)

if importlib.util.find_spec("areal") is None:
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
    """A server that plays SGLang with the tiny model."""
    from tests.areal.server import serving

    with serving(tiny) as made:
        yield made


@pytest.fixture
def engine(server: Any) -> Iterator[Callable[..., Any]]:
    """A function that makes AReaL's engine for the server; all are destroyed in the end."""
    from areal.api.cli_args import InferenceEngineConfig
    from areal.engine.sglang_remote import SGLangBackend
    from areal.infra.remote_inf_engine import RemoteInfEngine

    made: list[Any] = []

    def make(**options: Any) -> Any:
        settings = {
            "backend": "sglang:d1",
            "experiment_name": "e",
            "trial_name": "t",
            "consumer_batch_size": 2,
            "max_concurrent_rollouts": 4,
            "check_trajectory_format": True,
            "pause_grace_period": 0.0,
        }
        engine = RemoteInfEngine(InferenceEngineConfig(**{**settings, **options}), SGLangBackend())
        engine.initialize(addr=server.address, train_data_parallel_size=1)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.destroy()

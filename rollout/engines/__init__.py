"""Inference engines, which sample token ids and report log-probs."""

from trajgym.rollout.engines._base import Generation, TokenEngine
from trajgym.rollout.engines._fake import FakeCall, FakeEngine, Fault
from trajgym.rollout.engines._local import LocalEngine
from trajgym.rollout.engines._local_vision import LocalVisionEngine
from trajgym.rollout.engines._local_vllm import LocalVLLMEngine
from trajgym.rollout.engines._smollm2 import LoadedModel, find_smollm2, load_smollm2, save_smollm2
from trajgym.rollout.engines._vllm import VersionSource, VLLMEngine

__all__ = [
    "FakeCall",
    "FakeEngine",
    "Fault",
    "Generation",
    "LoadedModel",
    "LocalEngine",
    "LocalVLLMEngine",
    "LocalVisionEngine",
    "TokenEngine",
    "VLLMEngine",
    "VersionSource",
    "find_smollm2",
    "load_smollm2",
    "save_smollm2",
]

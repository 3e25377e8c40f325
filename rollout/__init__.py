"""Driving sessions: policies, engines, renderers and the runner."""

from trajgym.rollout._byte_renderer import ByteRenderer
from trajgym.rollout._collect import CollectReport, collect
from trajgym.rollout._engine import Generation, TokenEngine
from trajgym.rollout._fake_engine import FakeCall, FakeEngine, Fault
from trajgym.rollout._local import LocalEngine, LocalPolicy
from trajgym.rollout._openai import OpenAIPolicy
from trajgym.rollout._packaged import PackagedRenderer, renderer_for
from trajgym.rollout._policy import (
    Policy,
    PolicyError,
    PolicyGarbage,
    PolicyRejected,
    PolicyRequest,
    PolicyUnavailable,
)
from trajgym.rollout._renderer import Parsed, Renderer
from trajgym.rollout._retry import Retry
from trajgym.rollout._runner import Progress, Runner, SealedGroup, group_id
from trajgym.rollout._scripted import ScriptedPolicy, call, say
from trajgym.rollout._smollm2 import LoadedModel, find_smollm2, load_smollm2, save_smollm2
from trajgym.rollout._template import TemplateRenderer
from trajgym.rollout._token_policy import TokenPolicy
from trajgym.rollout._vllm import VersionSource, VLLMEngine

__all__ = [
    "ByteRenderer",
    "CollectReport",
    "FakeCall",
    "FakeEngine",
    "Fault",
    "Generation",
    "LoadedModel",
    "LocalEngine",
    "LocalPolicy",
    "OpenAIPolicy",
    "PackagedRenderer",
    "Parsed",
    "Policy",
    "PolicyError",
    "PolicyGarbage",
    "PolicyRejected",
    "PolicyRequest",
    "PolicyUnavailable",
    "Progress",
    "Renderer",
    "Retry",
    "Runner",
    "ScriptedPolicy",
    "SealedGroup",
    "TemplateRenderer",
    "TokenEngine",
    "TokenPolicy",
    "VLLMEngine",
    "VersionSource",
    "call",
    "collect",
    "find_smollm2",
    "group_id",
    "load_smollm2",
    "renderer_for",
    "save_smollm2",
    "say",
]

"""Running sessions: the runner and its settings, policies and expansions.

The parts that policies and judges are built from are in `trajgym.rollout.engines`,
`trajgym.rollout.rendering` and `trajgym.rollout.annotators`.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from trajgym.rollout._collect import CollectReport, collect
from trajgym.rollout._context import ContextFull
from trajgym.rollout._drive import SessionHooks, derive_seed, drive, run_session
from trajgym.rollout._expansion import (
    EntropyExpansion,
    Expansion,
    SurprisalExpansion,
    TreeExpansion,
)
from trajgym.rollout._local_policy import LocalPolicy
from trajgym.rollout._policy import (
    AttemptPolicy,
    Policy,
    PolicyError,
    PolicyGarbage,
    PolicyRejected,
    PolicyRequest,
    PolicyUnavailable,
)
from trajgym.rollout._progress import Progress
from trajgym.rollout._rescore import Rescored, RescoreReport, rescore
from trajgym.rollout._retry import Limiter, Retry
from trajgym.rollout._runner import Runner
from trajgym.rollout._sample import OpenGroup, group_id, run_sample
from trajgym.rollout._scripted import ScriptedPolicy, call, say
from trajgym.rollout._sealed import SealedGroup
from trajgym.rollout._settings import RunKeywords, RunSettings
from trajgym.rollout._supervisor import RunIncomplete
from trajgym.rollout._sync import collect_sync
from trajgym.rollout._token_policy import TokenPolicy
from trajgym.rollout.annotators._annotate import annotate
from trajgym.rollout.engines._fake import FakeEngine
from trajgym.rollout.engines._vllm import VLLMEngine
from trajgym.rollout.hosted._anthropic import AnthropicPolicy
from trajgym.rollout.hosted._openai import OpenAIPolicy
from trajgym.rollout.hosted._responses import ResponsesPolicy
from trajgym.rollout.rendering._packaged import renderer_for
from trajgym.trajectory._deprecated import moved_names as _moved_names

__all__ = [
    "AnthropicPolicy",
    "AttemptPolicy",
    "CollectReport",
    "ContextFull",
    "EntropyExpansion",
    "Expansion",
    "FakeEngine",
    "Limiter",
    "LocalPolicy",
    "OpenAIPolicy",
    "OpenGroup",
    "Policy",
    "PolicyError",
    "PolicyGarbage",
    "PolicyRejected",
    "PolicyRequest",
    "PolicyUnavailable",
    "Progress",
    "RescoreReport",
    "Rescored",
    "ResponsesPolicy",
    "Retry",
    "RunIncomplete",
    "RunKeywords",
    "RunSettings",
    "Runner",
    "ScriptedPolicy",
    "SealedGroup",
    "SessionHooks",
    "SurprisalExpansion",
    "TokenPolicy",
    "TreeExpansion",
    "VLLMEngine",
    "annotate",
    "call",
    "collect",
    "collect_sync",
    "derive_seed",
    "drive",
    "group_id",
    "renderer_for",
    "rescore",
    "run_sample",
    "run_session",
    "say",
]

if not _TYPE_CHECKING:  # type checkers report the old places
    __getattr__ = _moved_names(
        __name__,
        "trajgym.rollout.annotators",
        "trajgym.rollout.engines",
        "trajgym.rollout.rendering",
    )

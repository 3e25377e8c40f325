"""Driving sessions: policies, engines, renderers and the runner."""

from trajgym.rollout._annotate import Annotated, AnnotateReport, Annotator, annotate
from trajgym.rollout._byte_renderer import ByteRenderer
from trajgym.rollout._certificate import (
    Analysis,
    Certificate,
    Citation,
    Counterexample,
    ErrorRates,
    Premise,
    Trace,
    TraceStep,
    check_certificate,
)
from trajgym.rollout._certificate_judge import CertificateCase, CertificateJudge
from trajgym.rollout._collect import CollectReport, collect
from trajgym.rollout._drive import derive_seed, drive, run_session
from trajgym.rollout._engine import Generation, ShownImage, TokenEngine
from trajgym.rollout._expansion import (
    EntropyExpansion,
    Expansion,
    SurprisalExpansion,
    TreeExpansion,
)
from trajgym.rollout._fake_engine import FakeCall, FakeEngine, Fault
from trajgym.rollout._hint_judge import HintJudge
from trajgym.rollout._local import LocalEngine, LocalPolicy
from trajgym.rollout._local_vision import LocalVisionEngine
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
from trajgym.rollout._processor import open_image, pixels_of, processor_name
from trajgym.rollout._renderer import Parsed, Renderer
from trajgym.rollout._retry import Retry
from trajgym.rollout._runner import Progress, Runner, SealedGroup, group_id
from trajgym.rollout._scripted import ScriptedPolicy, call, say
from trajgym.rollout._smollm2 import LoadedModel, find_smollm2, load_smollm2, save_smollm2
from trajgym.rollout._template import TemplateRenderer
from trajgym.rollout._token_policy import TokenPolicy
from trajgym.rollout._vision import VisionRenderer
from trajgym.rollout._vllm import VersionSource, VLLMEngine
from trajgym.rollout._vote_judge import VoteJudge, majority

__all__ = [
    "Analysis",
    "AnnotateReport",
    "Annotated",
    "Annotator",
    "ByteRenderer",
    "Certificate",
    "CertificateCase",
    "CertificateJudge",
    "Citation",
    "CollectReport",
    "Counterexample",
    "EntropyExpansion",
    "ErrorRates",
    "Expansion",
    "FakeCall",
    "FakeEngine",
    "Fault",
    "Generation",
    "HintJudge",
    "LoadedModel",
    "LocalEngine",
    "LocalPolicy",
    "LocalVisionEngine",
    "OpenAIPolicy",
    "PackagedRenderer",
    "Parsed",
    "Policy",
    "PolicyError",
    "PolicyGarbage",
    "PolicyRejected",
    "PolicyRequest",
    "PolicyUnavailable",
    "Premise",
    "Progress",
    "Renderer",
    "Retry",
    "Runner",
    "ScriptedPolicy",
    "SealedGroup",
    "ShownImage",
    "SurprisalExpansion",
    "TemplateRenderer",
    "TokenEngine",
    "TokenPolicy",
    "Trace",
    "TraceStep",
    "TreeExpansion",
    "VLLMEngine",
    "VersionSource",
    "VisionRenderer",
    "VoteJudge",
    "annotate",
    "call",
    "check_certificate",
    "collect",
    "derive_seed",
    "drive",
    "find_smollm2",
    "group_id",
    "load_smollm2",
    "majority",
    "open_image",
    "pixels_of",
    "processor_name",
    "renderer_for",
    "run_session",
    "save_smollm2",
    "say",
]

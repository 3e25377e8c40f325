"""Policies behind the APIs of hosted models, on their official SDKs.

They also work with servers that implement those APIs, such as vLLM, SGLang and llama.cpp.
"""

from trajgym.rollout.hosted._anthropic import AnthropicPolicy
from trajgym.rollout.hosted._base import HostedPolicy
from trajgym.rollout.hosted._native import without_native
from trajgym.rollout.hosted._openai import OpenAIPolicy
from trajgym.rollout.hosted._responses import ResponsesPolicy
from trajgym.rollout.hosted._settings import EndpointSettings

__all__ = [
    "AnthropicPolicy",
    "EndpointSettings",
    "HostedPolicy",
    "OpenAIPolicy",
    "ResponsesPolicy",
    "without_native",
]

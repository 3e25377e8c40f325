"""Policies by name, for the command line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trajgym.rollout import (
    FakeEngine,
    LocalPolicy,
    OpenAIPolicy,
    Policy,
    PolicyRequest,
    ScriptedPolicy,
    TokenPolicy,
)
from trajgym.trajectory import InvalidInput, Sampling

if TYPE_CHECKING:
    from trajgym.envs import Env, Reply
    from trajgym.trajectory import Message

__all__ = ["make_policy"]


def make_policy(
    name: str,
    env: type[Env],
    *,
    base_url: str | None = None,
    model: str | None = None,
    api_key_env: str = "OPENAI_API_KEY",
    temperature: float = 1.0,
) -> Policy:
    """Return the policy that ``--policy NAME`` means.

    Args:
        name: ``scripted``, ``fake``, ``local`` or ``openai``.
        env: whose script the scripted and the fake policy follow.
        base_url: endpoint of ``openai``.
        model: model at that endpoint.
        api_key_env: environment variable with the key.
        temperature: of sampling.

    Raises:
        InvalidInput: no such policy, or ``openai`` without a model.
    """
    if name == "scripted":
        return ScriptedPolicy(lambda request: _next_of(env, request), name=env.__name__.lower())
    if name == "fake":
        return _FakeScript(env)
    sampling = Sampling(temperature=temperature)
    if name == "local":
        return LocalPolicy.smollm2(sampling=sampling)
    if name == "openai":
        if model is None:
            raise InvalidInput("an OpenAI-compatible policy needs --model")
        key = os.environ.get(api_key_env)
        return OpenAIPolicy(model, base_url=base_url, api_key=key, sampling=sampling)
    raise InvalidInput(f"no policy {name!r}; there are scripted, fake, local, openai")


def _next_of(env: type[Env], request: PolicyRequest) -> Message:
    assert request.task is not None
    script = env.script(request.task, request.sample)
    said = sum(message["role"] == "assistant" for message in request.messages)
    if said >= len(script):
        return {"role": "assistant", "content": "I have nothing more to do."}
    answer: Message = script[said]
    return answer


class _FakeScript(Policy):
    """Follows the environment's script through a fake engine: exact turns, marked synthetic."""

    def __init__(self, env: type[Env]) -> None:
        self.name = "engine:fake"
        self._env = env

    async def sample(self, request: PolicyRequest) -> Reply:
        assert request.task is not None
        script = self._env.script(request.task, request.sample)
        engine = FakeEngine([*script, "I have nothing more to do."])
        return await TokenPolicy(engine, engine.renderer).sample(request)

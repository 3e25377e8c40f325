"""Policies by name, for the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajgym.cli._endpoint import EndpointOptions, endpoint_policy
from trajgym.envs import Env
from trajgym.rollout import (
    FakeEngine,
    LocalPolicy,
    Policy,
    PolicyRequest,
    ScriptedPolicy,
    TokenPolicy,
)
from trajgym.trajectory import InvalidInput, Sampling

if TYPE_CHECKING:
    from trajgym.envs import Reply
    from trajgym.trajectory import Message

__all__ = ["make_policy"]


def make_policy(name: str, env: type[Env], endpoint: EndpointOptions | None = None) -> Policy:
    """Return the policy of a command.

    Args:
        name: ``scripted``, ``fake`` or ``local``; not used if there is an endpoint or a model.
        env: whose script the scripted and the fake policy follow.
        endpoint: options of the model.

    Raises:
        InvalidInput: no such policy, no script to follow, or wrong options of the endpoint.
    """
    endpoint = endpoint or EndpointOptions()
    if endpoint.model is not None or endpoint.base_url is not None or name == "openai":
        return endpoint_policy(endpoint)
    if name in {"scripted", "fake"} and env.script.__func__ is Env.script.__func__:  # type: ignore[attr-defined]
        raise InvalidInput(
            f"{env.__name__} has no script for --policy {name}: choose a model (--base-url URL "
            "--model NAME, or --policy local), or override script() in the environment",
        )
    if name == "scripted":
        return ScriptedPolicy(lambda request: _next_of(env, request), name=env.__name__.lower())
    if name == "fake":
        return _FakeScript(env)
    if name == "local":
        return LocalPolicy.smollm2(sampling=Sampling(temperature=endpoint.temperature))
    raise InvalidInput(
        f"no policy {name!r}; there are scripted, fake and local, and models with --model NAME"
    )


def _next_of(env: type[Env], request: PolicyRequest) -> Message:
    assert request.task is not None
    script = env.script(request.task, request.sample)
    said = sum(message["role"] == "assistant" for message in request.messages)
    if said >= len(script):
        return {"role": "assistant", "content": "I have nothing more to do."}
    answer: Message = script[said]
    return answer


class _FakeScript(Policy):
    """Follows the environment's script through a fake engine; its turns are exact and synthetic."""

    def __init__(self, env: type[Env]) -> None:
        self.name = "engine:fake"
        self._env = env

    async def sample(self, request: PolicyRequest) -> Reply:
        assert request.task is not None
        script = self._env.script(request.task, request.sample)
        engine = FakeEngine([*script, "I have nothing more to do."])
        return await TokenPolicy(engine, engine.renderer).sample(request)

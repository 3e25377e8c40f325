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
from trajgym.rollout.mixture import Mixture
from trajgym.trajectory import InvalidInput, Sampling

if TYPE_CHECKING:
    from trajgym.envs import Reply
    from trajgym.trajectory import Message

__all__ = ["make_policy"]


def make_policy(
    name: str, env: type[Env] | Mixture, endpoint: EndpointOptions | None = None
) -> Policy:
    """Return the policy of a command.

    Args:
        name: ``scripted``, ``fake`` or ``local``; not used if there is an endpoint or a model.
        env: whose script the scripted and the fake policy follow; of a mixture, the environment
            of each task.
        endpoint: options of the model.

    Raises:
        InvalidInput: no such policy, no script to follow, or wrong options of the endpoint.
    """
    endpoint = endpoint or EndpointOptions()
    if endpoint.model is not None or endpoint.base_url is not None or name == "openai":
        return endpoint_policy(endpoint)
    if name in {"scripted", "fake"}:
        scripts = _Scripts(env, name)
        if name == "fake":
            return _FakeScript(scripts)
        return ScriptedPolicy(lambda request: _next_of(scripts, request), name=scripts.name)
    if name == "local":
        return LocalPolicy.smollm2(sampling=Sampling(temperature=endpoint.temperature))
    raise InvalidInput(
        f"no policy {name!r}; there are scripted, fake and local, and models with --model NAME"
    )


class _Scripts:
    """The scripts of one or several environments.

    Raises:
        InvalidInput: an environment has none.
    """

    def __init__(self, env: type[Env] | Mixture, policy: str) -> None:
        self._mixture = env if isinstance(env, Mixture) else None
        if isinstance(env, Mixture):
            self._classes = {part.name: part.spec.resolve() for part in env.parts}
            self.name = "mixture"
        else:
            self._classes = {"": env}
            self.name = env.__name__.lower()
        for one in self._classes.values():
            if one.script.__func__ is Env.script.__func__:  # type: ignore[attr-defined]
                raise InvalidInput(
                    f"{one.__name__} has no script for --policy {policy}: choose a model "
                    "(--base-url URL --model NAME, or --policy local), or override script() in "
                    "the environment",
                )

    def of(self, request: PolicyRequest) -> list[Message]:
        """Return the script of the session that a request belongs to."""
        task = request.task
        assert task is not None
        part = "" if self._mixture is None else self._mixture.part_of(task).name
        script: list[Message] = self._classes[part].script(task, request.sample)
        return script


def _next_of(scripts: _Scripts, request: PolicyRequest) -> Message:
    script = scripts.of(request)
    said = sum(message["role"] == "assistant" for message in request.messages)
    if said >= len(script):
        return {"role": "assistant", "content": "I have nothing more to do."}
    answer: Message = script[said]
    return answer


class _FakeScript(Policy):
    """Follows the environment's script through a fake engine; its turns are exact and synthetic."""

    def __init__(self, scripts: _Scripts) -> None:
        self.name = "engine:fake"
        self._scripts = scripts

    async def sample(self, request: PolicyRequest) -> Reply:
        engine = FakeEngine([*self._scripts.of(request), "I have nothing more to do."])
        return await TokenPolicy(engine, engine.renderer).sample(request)

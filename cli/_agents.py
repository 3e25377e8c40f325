"""Agent programs, as the command line names them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast, get_args

from trajgym.cli._endpoint import EndpointOptions, endpoint_key, extra_fields, model_name
from trajgym.rollout import OpenAIPolicy
from trajgym.server import AgentProgram, EngineKind, Upstream
from trajgym.trajectory import InvalidInput, Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AgentOptions", "agent_policy"]

_MODES = ("processed", "raw", "unknown")
_OPENAI = "https://api.openai.com"
_RETRY_SECONDS = 240.0
"""Agents' clients wait at least this long for an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """Options of an agent program.

    Args:
        agent: name of a known agent.
        agent_command: a shell line to run instead.
        agent_set: settings of the agent.
        engine: kind of the model's endpoint; ``vllm`` by default for a ``--base-url``, else
            ``hosted``.
        logprobs: what the engine's log-probs refer to: ``processed``, ``raw`` or ``unknown``.
    """

    agent: str | None = None
    agent_command: str | None = None
    agent_set: dict[str, Any] = field(default_factory=dict)
    engine: str | None = None
    logprobs: str = "unknown"

    @property
    def wanted(self) -> bool:
        """Whether an agent program was named."""
        return self.agent is not None or self.agent_command is not None

    @classmethod
    def of(cls, given: Mapping[str, Any], settings: Mapping[str, Any]) -> Self:
        """Return the options among a command's arguments."""
        return cls(
            agent=given.get("agent"),
            agent_command=given.get("agent_command"),
            agent_set=dict(settings),
            engine=given.get("engine"),
            logprobs=given.get("logprobs") or "unknown",
        )


def agent_policy(options: AgentOptions, endpoint: EndpointOptions) -> AgentProgram:
    """Return an agent program that asks a model behind an endpoint.

    Raises:
        InvalidInput: no model or no API key, an option that has no effect here, or wrong settings
            of the agent.
    """
    if endpoint.model is None:
        raise InvalidInput("an agent program needs a model: --model NAME")
    kind, model = model_name(endpoint.model)
    if kind != "openai":
        raise InvalidInput(
            f"--model {endpoint.model}: an agent's calls are forwarded as chat completions, "
            "whatever API the agent uses"
        )
    for name in ("stream", "request_rate", "context_tokens"):
        if getattr(endpoint, name) is not None:
            option = name.replace("_", "-")
            raise InvalidInput(f"--{option} has no effect on agent programs: omit it")
    base_url = endpoint.base_url or os.environ.get(OpenAIPolicy.url_variable)
    engine = options.engine or ("vllm" if base_url else "hosted")
    if engine not in get_args(EngineKind):
        raise InvalidInput(f"--engine {engine}: use one of {', '.join(get_args(EngineKind))}")
    if options.logprobs not in _MODES:
        raise InvalidInput(f"--logprobs {options.logprobs}: use one of {', '.join(_MODES)}")
    upstream = Upstream(
        base_url=base_url or _OPENAI,
        kind=cast("EngineKind", engine),
        api_key=endpoint_key(endpoint, OpenAIPolicy),
        model=model,
        logprob_mode=cast("Any", options.logprobs),
        read_seconds=endpoint.request_timeout,
        connect_seconds=min(endpoint.patience, _RETRY_SECONDS),
    )
    return AgentProgram(
        upstream,
        agent=options.agent,
        command=options.agent_command,
        sampling=Sampling(
            temperature=endpoint.temperature,
            top_p=endpoint.top_p,
            top_k=endpoint.top_k,
            max_tokens=endpoint.max_tokens,
        ),
        extra_body=extra_fields(endpoint.extra_body),
        **options.agent_set,
    )

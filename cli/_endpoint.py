"""Models behind endpoints, as the command line names them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from trajgym.rollout import AnthropicPolicy, Limiter, OpenAIPolicy, ResponsesPolicy, Retry
from trajgym.trajectory import InvalidInput, Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trajgym.rollout.hosted import HostedPolicy

__all__ = ["EndpointOptions", "endpoint_key", "endpoint_policy", "extra_fields", "model_name"]

_KINDS: dict[str, type[HostedPolicy]] = {
    "openai": OpenAIPolicy,
    "responses": ResponsesPolicy,
    "anthropic": AnthropicPolicy,
}
_SECRETS = frozenset({"api_key", "apikey", "authorization", "x-api-key"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """Options of a model behind an endpoint.

    Args:
        model: ``NAME`` or ``openai:NAME`` (chat completions), ``responses:NAME``,
            ``anthropic:NAME``; None if no endpoint is used.
        base_url: of the endpoint; the provider's by default.
        api_key_env: environment variable with the key; the provider's by default.
        api_key_file: file with the key.
        temperature: of sampling.
        top_p: nucleus sampling.
        top_k: top-k sampling.
        max_tokens: most tokens of an answer.
        extra_body: further fields of each request, as a JSON object.
        stream: whether answers are streamed; the policy's default if None.
        request_timeout: seconds for one try.
        patience: seconds for which a call is retried.
        request_rate: most requests per second.
        context_tokens: size of the model's context window.
    """

    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    api_key_file: Path | None = None
    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    extra_body: str | None = None
    stream: bool | None = None
    request_timeout: float = 600.0
    patience: float = 900.0
    request_rate: float | None = None
    context_tokens: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the options among a command's arguments; other arguments are ignored."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: given[name] for name in names if name in given})


def model_name(model: str) -> tuple[str, str]:
    """Return the kind of API and the model's own name of a ``--model``.

    A prefix that is not a kind is part of the name, as in ``llama3:8b``.
    """
    kind, colon, name = model.partition(":")
    return (kind, name) if colon and kind in _KINDS else ("openai", model)


def endpoint_policy(options: EndpointOptions) -> HostedPolicy:
    """Return the policy of a model behind an endpoint.

    Raises:
        InvalidInput: no model, no API key, or ``extra_body`` is not a JSON object.
        MissingExtra: the SDK of that API is not installed.
    """
    if options.model is None:
        raise InvalidInput("an endpoint needs a model: --model NAME")
    kind, name = model_name(options.model)
    policy = _KINDS[kind]
    given: dict[str, Any] = {
        "base_url": options.base_url,
        "api_key": endpoint_key(options, policy),
        "sampling": Sampling(
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            max_tokens=options.max_tokens,
        ),
        "extra_body": extra_fields(options.extra_body),
        "timeout": options.request_timeout,
        "retry": Retry(total_seconds=options.patience),
    }
    if options.request_rate is not None:
        where = f"{options.base_url} {options.model}"
        given["limiter"] = Limiter(rate=options.request_rate, name=where)
    if options.stream is not None:
        if policy is OpenAIPolicy:
            raise InvalidInput("--stream is an option of responses: and anthropic: models")
        given["stream"] = options.stream
    if policy is OpenAIPolicy:
        given["context_tokens"] = options.context_tokens
    return policy(name, **given)


def endpoint_key(options: EndpointOptions, policy: type[HostedPolicy]) -> str | None:
    """Return the API key of an endpoint; None if it needs none.

    Raises:
        InvalidInput: there is none, and the endpoint is the provider's own.
    """
    if options.api_key_file is not None:
        try:
            key = options.api_key_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise InvalidInput(f"--api-key-file {options.api_key_file}: {error}") from error
        if not key:
            raise InvalidInput(f"--api-key-file {options.api_key_file} is empty")
        return key
    variable = options.api_key_env or policy.key_variable
    key = os.environ.get(variable, "")
    elsewhere = options.base_url or os.environ.get(policy.url_variable)
    if not key and (options.api_key_env or not elsewhere):
        raise InvalidInput(
            f"no API key: the environment variable {variable} is not set. Set it, name another "
            "with --api-key-env NAME, or a file with --api-key-file FILE; an endpoint of your own "
            "is chosen with --base-url URL",
        )
    return key or None


def extra_fields(text: str | None) -> dict[str, Any]:
    """Return the fields of an ``--extra-body``.

    Raises:
        InvalidInput: it is not a JSON object, or has a key that is a secret.
    """
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"--extra-body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidInput("--extra-body is not a JSON object, such as '{\"min_p\": 0.1}'")
    if secret := next((name for name in found if name.lower() in _SECRETS), None):
        raise InvalidInput(
            f"--extra-body has {secret!r}: it is recorded with the run, so keys don't belong in "
            "it; use --api-key-env or --api-key-file",
        )
    return found

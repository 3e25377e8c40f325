"""The settings that all policies behind an endpoint take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.rollout._retry import Limiter, Retry
    from trajgym.trajectory import Sampling

__all__ = ["EndpointKeywords", "EndpointSettings"]


class EndpointKeywords(TypedDict, total=False):
    """The fields of :class:`EndpointSettings` as keyword arguments, for type checkers."""

    base_url: str | None
    api_key: str | None
    sampling: Sampling | None
    timeout: float
    retry: Retry | None
    limiter: Limiter | None
    extra_body: Mapping[str, Any] | None
    session_header: str
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """How an endpoint is called; policies take the fields as keyword arguments.

    Args:
        base_url: of the endpoint; the SDK's default if None, which is the policy's
            ``url_variable`` (such as ``OPENAI_BASE_URL``) or the provider.
        api_key: by default from the policy's ``key_variable`` (such as ``OPENAI_API_KEY``);
            ``"none"`` if a ``base_url`` is given and that is not set.
        sampling: parameters to sample with; those that are None are not sent.
        timeout: seconds for one try.
        retry: how often a call is tried, and for how long.
        limiter: paces the calls; by default the shared one of this endpoint and model.
        extra_body: further fields of the request; they replace fields of the same name.
        session_header: header that carries the session's id, as a key for prefix caches.
        name: recorded with each turn; ``<kind>:<model>`` if None.
    """

    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    sampling: Sampling | None = None
    timeout: float = 600.0
    retry: Retry | None = None
    limiter: Limiter | None = None
    extra_body: Mapping[str, Any] | None = None
    session_header: str = "x-session-id"
    name: str | None = None

"""Requests to hosted models: retries, timeouts, rate limits, and the mapping of errors."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from trajgym.rollout._context import ContextFull, context_full
from trajgym.rollout._policy import (
    Policy,
    PolicyError,
    PolicyGarbage,
    PolicyRejected,
    PolicyUnavailable,
)
from trajgym.rollout._retry import Retry, Transient, of_status, shared_limiter
from trajgym.rollout.hosted._settings import EndpointSettings
from trajgym.trajectory import Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.rollout._policy import PolicyRequest
    from trajgym.rollout.hosted._settings import EndpointKeywords

__all__ = ["ErrorInAnswer", "HostedPolicy", "count", "present"]

_NO_CREDIT = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
"""Error codes with status 429 that are not transient."""
_STATUS = {
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "vector_store_timeout": 504,
}
"""Statuses of error types, for errors in streams and in answers with status 200."""


class HostedPolicy(Policy):
    """Base class of the policies of this package.

    Each call is tried again after rate limits, timeouts, 5xx and broken connections; failed tries
    and waits are off the agent's clock. All policies of a process that call one model at one
    endpoint share a :class:`Limiter`. The API key is only held in memory: neither the policy's
    identity nor its errors contain it.

    Args:
        sdk: the provider's package.
        model: name of the model at the endpoint.
        endpoint: see :class:`EndpointSettings`.
    """

    kind: ClassVar[str]
    """Kind of policy, the first part of its name."""
    key_variable: ClassVar[str]
    """Environment variable that holds the API key by default."""
    url_variable: ClassVar[str]
    """Environment variable that holds the default of ``base_url``."""

    def __init__(
        self,
        sdk: Any,
        model: str,
        **endpoint: Unpack[EndpointKeywords],
    ) -> None:
        settings = EndpointSettings(**endpoint)
        where = settings.base_url or os.environ.get(self.url_variable) or f"api of {self.kind}"
        self.name = settings.name or f"{self.kind}:{model}"
        self._sdk = sdk
        self._model = model
        self._settings = settings
        self._api_key = settings.api_key or os.environ.get(self.key_variable)
        self._sampling = settings.sampling or Sampling()
        self._retry = settings.retry or Retry()
        self._limiter = settings.limiter or shared_limiter(f"{where} {model}")
        self._extra_body = dict(settings.extra_body or {})
        self._client: Any = None

    @property
    def identity(self) -> dict[str, Any]:
        """See :meth:`Policy.identity`; the endpoint's URL is not part of it."""
        return {
            "name": self.name,
            "model": self._model,
            "sampling": present(dataclasses.asdict(self._sampling)),
            "extra_body": self._extra_body,
        }

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # For subclasses -----------------------------------------------------------------------

    @abstractmethod
    def _open(self, options: dict[str, Any]) -> Any:
        """Return the SDK's asynchronous client, made with these options."""

    @abstractmethod
    async def _send(self, client: Any, body: dict[str, Any], headers: dict[str, str]) -> Any:
        """Make one try and return the SDK's answer.

        Raises:
            ErrorInAnswer: the answer is an error.
        """

    @property
    @abstractmethod
    def _tokens_field(self) -> str:
        """Field of the request that limits the response's tokens."""

    async def _ask(self, body: dict[str, Any], session: str) -> tuple[Any, float]:
        """Return the answer, and the seconds spent before the successful try."""
        headers = {self._settings.session_header: session} if session else {}

        async def once() -> Any:
            # The SDK's timeouts restart with each byte; this one does not.
            async with asyncio.timeout(self._settings.timeout):
                return await self._send(client, body, headers)

        try:
            client = self._opened()
            return await self._retry.run(once, transient=self._transient, limiter=self._limiter)
        except TimeoutError as error:
            waited = f"no answer within {self._settings.timeout:g} s"
            raise PolicyUnavailable(f"{self.name}: {waited}") from error
        except Exception as error:  # boundary: errors of the provider's SDK have no common base
            named = self._named(error)
            if named is None:  # neither the SDK's nor its transport's: a fault of this package
                raise
            if isinstance(named, ContextFull) and named.room and self._bound(body, named.room):
                return await self._ask(body, session)
            if self._api_key and self._api_key in str(error):
                raise named from None  # the traceback is recorded, and would quote the key
            raise named from error

    def _bound(self, body: dict[str, Any], room: int) -> bool:
        """Lower the request's token limit to ``room``; return whether it was higher."""
        if body.get(self._tokens_field, 0) <= room:
            return False
        body[self._tokens_field] = room
        return True

    def _sampling_of(self, request: PolicyRequest) -> Sampling:
        most, limit = self._sampling.max_tokens, request.limits.completion_tokens
        if limit is not None:
            most = limit if most is None else min(most, limit)
        seed = self._sampling.seed if request.seed is None else request.seed
        return dataclasses.replace(self._sampling, max_tokens=most, seed=seed)

    # Errors -------------------------------------------------------------------------------

    def _transient(self, error: Exception) -> Transient | None:
        if (status := self._status(error)) is not None:
            text = str(error)
            code = getattr(error, "code", None)
            if code in _NO_CREDIT or "Request too large" in text or _full(error):
                return None  # the same request would be refused again
            response = getattr(error, "response", None)
            return of_status(status, {} if response is None else response.headers, text)
        if isinstance(error, (self._sdk.APITimeoutError, TimeoutError)):
            return Transient(f"no answer within {self._settings.timeout:g} s")
        if isinstance(error, self._sdk.APIConnectionError):
            cause = error.__cause__
            refused = type(cause).__name__ == "ConnectError"
            return Transient(f"{error} ({cause})", unreachable=refused)
        if _is_transport(error):  # in the middle of a stream
            return Transient(f"connection lost: {error}")
        return None

    def _status(self, error: Exception) -> int | None:
        """Return the HTTP status of an error; None if the endpoint did not report it."""
        if isinstance(error, ErrorInAnswer):
            return error.status_code
        if isinstance(error, self._sdk.APIStatusError):
            status: int = error.status_code
            return status if status >= 400 else _STATUS.get(str(error.type), 400)
        if type(error) is self._sdk.APIError:  # in a stream of OpenAI's
            return _STATUS.get(str(getattr(error, "code", None)), 400)
        return None

    def _named(self, error: Exception) -> PolicyError | None:
        """Return the project's error for an SDK's error, or None if it is not an SDK's."""
        if isinstance(error, PolicyError):
            return error
        text = self._without_key(f"{self.name}: {type(error).__name__}: {error}"[:500])
        if self._status(error) is not None:
            if (full := _full(error, self.name)) is not None:
                return full
            return PolicyUnavailable(text) if self._transient(error) else PolicyRejected(text)
        if isinstance(error, self._sdk.APIConnectionError):
            return PolicyUnavailable(f"{text} (is the endpoint running, and is its URL correct?)")
        if _is_transport(error):
            return PolicyUnavailable(text)
        if isinstance(error, (self._sdk.APIError, ValueError)):
            return PolicyGarbage(f"{text}: the endpoint's answer can't be read")
        return PolicyRejected(text) if isinstance(error, self._sdk_error) else None

    @property
    def _sdk_error(self) -> type[Exception]:
        """The root of the SDK's errors."""
        base: type[Exception] = self._sdk.APIError.__mro__[1]
        return base

    def _without_key(self, text: str) -> str:
        return text.replace(self._api_key, "[api key]") if self._api_key else text

    def _opened(self) -> Any:
        if self._client is None:
            key = self._api_key
            if key is None and self._settings.base_url is not None:
                key = "none"
            self._client = self._open(
                {
                    "base_url": self._settings.base_url,
                    "api_key": key,
                    "max_retries": 0,
                    "timeout": self._settings.timeout,
                }
            )
        return self._client


def present(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def count(holder: Any, name: str) -> int:
    """Return a token count of an SDK's answer, 0 if it has none."""
    value = getattr(holder, name, 0)
    return value if isinstance(value, int) else 0


class ErrorInAnswer(ValueError):
    """An error that a server sent with status 200, as llama.cpp and OpenRouter do."""

    def __init__(self, error: Any) -> None:
        if error is not None and not isinstance(error, dict):
            error = {name: getattr(error, name, None) for name in ("code", "type", "message")}
        fields = error or {}
        super().__init__(f"the endpoint answered {error}")
        self.code = fields.get("code")
        self.type = fields.get("type")
        self.status_code = self.code if isinstance(self.code, int) else self._known()

    def _known(self) -> int:
        return _STATUS.get(str(self.code)) or _STATUS.get(str(self.type)) or 400


def _full(error: Any, where: str = "") -> ContextFull | None:
    code = getattr(error, "code", None)
    return context_full(str(error), code if isinstance(code, str) else error.type, where)


def _is_transport(error: Exception) -> bool:
    """Return whether an error is one of the SDK's HTTP client, which streams don't wrap."""
    return any(kind.__name__ == "TransportError" for kind in type(error).__mro__)

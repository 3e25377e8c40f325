"""When an HTTP call is tried again, and how long to wait before."""

from __future__ import annotations

import email.utils
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tenacity import AsyncRetrying, RetryCallState

__all__ = ["Retry", "retry_after"]

_RETRIED_STATUS = frozenset({408, 429})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and how long a call is tried.

    Rate limits, time-outs, broken connections and 5xx are tried again; other 4xx never.

    Args:
        attempts: most tries of one call.
        total_seconds: no try begins after so long.
        first_wait: most seconds before the second try; doubled each time. The wait is drawn at
            random below it, so that many sessions don't come back at once.
        longest_wait: where the doubling ends; a server's ``Retry-After`` goes before all this.
    """

    attempts: int = 6
    total_seconds: float = 900.0
    first_wait: float = 0.5
    longest_wait: float = 30.0

    def retrying(self, transient: Callable[[BaseException], bool] | None = None) -> AsyncRetrying:
        """Return the tenacity loop for one call.

        Args:
            transient: says whether an error is worth another try; by default the openai SDK's
                errors are known.
        """
        from tenacity import (
            AsyncRetrying,
            retry_if_exception,
            stop_after_attempt,
            stop_before_delay,
        )

        return AsyncRetrying(
            stop=stop_after_attempt(self.attempts) | stop_before_delay(self.total_seconds),
            wait=self._wait,
            retry=retry_if_exception(transient or is_transient),
            reraise=True,
        )

    def _wait(self, state: RetryCallState) -> float:
        from tenacity import wait_random_exponential

        error = state.outcome.exception() if state.outcome else None
        response = getattr(error, "response", None)
        asked = retry_after(response.headers) if response is not None else None
        if asked is not None:
            return asked
        return wait_random_exponential(multiplier=self.first_wait, max=self.longest_wait)(state)


def is_transient(error: BaseException) -> bool:
    """Return True for an error that may go away by itself."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return error.status_code in _RETRIED_STATUS or error.status_code >= 500
    # The SDK's time-outs are connection errors; TimeoutError is the deadline of a whole try.
    return isinstance(error, (openai.APIConnectionError, TimeoutError))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait, or None; a date in the past is 0."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if value is None or (seconds := _number(value)) is not None:
        return None if value is None else seconds
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None

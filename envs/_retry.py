"""The retry policy of HTTP calls."""

from __future__ import annotations

import asyncio
import email.utils
import random
import re
import time
import warnings
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, TypeVar

from trajgym.envs._clock import off_the_clock
from trajgym.envs._limiter import Limiter, Transient, shared_limiter
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

__all__ = ["Limiter", "Retry", "Transient", "of_status", "retry_after", "shared_limiter"]

_T = TypeVar("_T")

_RETRIED_STATUS = frozenset({408, 425, 429})
_OVERLOADED = frozenset({429, 503, 529})
_IN_BODY = re.compile(
    r'"retryDelay":\s*"([\d.]+)(m?s)"|(?i:try again in|retry after)\s+([\d.]+)\s*(m?s)'
)
"""Google's ``RetryInfo``, and the messages of servers that send no ``Retry-After``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a call is tried, and for how long.

    Rate limits, timeouts, connection errors and 5xx are retried; other 4xx never. A server's
    ``Retry-After`` replaces the waits below. Waits do not count as the agent's time.

    Args:
        tries: largest number of tries of one call; None means as many as the seconds allow.
        total_seconds: no try begins after this many seconds, without time in the limiter's queue.
            An endpoint that does not respond for as long counts as down: then each call is tried
            once, until one is answered.
        unreachable_seconds: the same while no connection can be established (a wrong URL).
        first_wait: largest number of seconds before the second try; doubled for each further try.
            The wait is drawn at random below it, so that sessions do not retry simultaneously.
        longest_wait: upper limit of the doubling.
        attempts: deprecated name of ``tries``.

    Raises:
        InvalidInput: a number is out of range.
    """

    tries: int | None = None
    total_seconds: float = 900.0
    unreachable_seconds: float = 120.0
    first_wait: float = 0.5
    longest_wait: float = 30.0
    attempts: InitVar[int | None] = None

    def __post_init__(self, attempts: int | None) -> None:
        if attempts is not None:
            message = "Retry(attempts=) is now called Retry(tries=)"
            warnings.warn(message, DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "tries", attempts)
        if self.tries is not None and self.tries < 1:
            raise InvalidInput(f"retry: tries is {self.tries}; it must be at least 1")
        for name in ("total_seconds", "unreachable_seconds", "first_wait", "longest_wait"):
            if not getattr(self, name) >= 0:
                raise InvalidInput(f"retry: {name} is {getattr(self, name)}; it must be at least 0")

    def patience(self, unreachable: bool) -> float:
        """Return how many seconds to wait for an endpoint."""
        seconds = self.unreachable_seconds if unreachable else self.total_seconds
        return min(seconds, self.total_seconds)

    async def run(
        self,
        once: Callable[[], Awaitable[_T]],
        *,
        transient: Callable[[Exception], Transient | None],
        limiter: Limiter,
    ) -> tuple[_T, float]:
        """Call until a try succeeds.

        Args:
            once: makes one try.
            transient: returns the kind of an exception if another try may succeed, else None.
            limiter: the endpoint's limiter.

        Returns:
            The result, and the seconds lost before the successful try, without those for which
            the session's clock was held.

        Raises:
            Exception: the exception of the last try.
        """
        spent = unreachable = lost = 0.0
        number = 0
        while True:
            number += 1
            lost += await limiter.turn(self.patience)
            begun = time.monotonic()
            try:
                value = await once()
            except Exception as error:  # raised again below unless it is transient
                failure = transient(error)
                if failure is None:
                    limiter.answered()
                    raise
                limiter.failed(begun, failure, self.first_wait, self.longest_wait)
                took = time.monotonic() - begun
                wait = self._wait(number, failure)
                spent += took + wait
                unreachable = unreachable + took + wait if failure.unreachable else 0.0
                if (
                    number == self.tries
                    or spent > self.total_seconds
                    or unreachable > self.unreachable_seconds
                    or limiter.is_down(self.patience)
                ):
                    raise
            else:
                limiter.answered()
                return value, lost
            lost += took
            with off_the_clock() as held:
                await asyncio.sleep(wait)
            lost += 0.0 if held else wait

    def _wait(self, number: int, failure: Transient) -> float:
        if failure.asked is not None:
            return failure.asked
        most = min(self.longest_wait, self.first_wait * 2.0 ** min(number - 1, 60))
        return random.uniform(0.0, most)  # noqa: S311 - spreads load, keeps no secret


def of_status(status: int, headers: Mapping[str, str], text: str = "") -> Transient | None:
    """Return the failure that an HTTP status stands for, or None if another try would not help.

    Args:
        status: status of the response.
        headers: headers with lower-case names, or a mapping that ignores case.
        text: the response's body, in which some servers state how long to wait.
    """
    if status not in _RETRIED_STATUS and status < 500:
        return None
    asked = retry_after(headers)
    if asked is None and (found := _IN_BODY.search(text)):
        number, unit = found[1] or found[3], found[2] or found[4]
        seconds = _number(number)
        asked = None if seconds is None else seconds / (1000 if unit.lower() == "ms" else 1)
    return Transient(f"status {status}", asked, throttled=status in _OVERLOADED)


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

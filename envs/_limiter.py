"""Rate limiting of calls to an endpoint, with one queue and back-off for all its sessions."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from trajgym.envs._clock import off_the_clock
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Limiter", "Transient", "shared_limiter"]

_WINDOW = 60.0
"""Seconds over which accepted calls are counted, because providers limit per minute."""
_RECOVERY = 60.0
"""Seconds after a cut until the rate has doubled; it grows slowly before, and fast after."""
_PROBES = 1.0
"""Largest number of calls per second to an endpoint that keeps failing."""
_TICK = 1e-3

_log = logging.getLogger(__name__)


class Transient(NamedTuple):
    """A failure that may be temporary."""

    reason: str
    asked: float | None = None
    """Seconds that the server asks to wait."""
    throttled: bool = False
    """The server reports a rate limit or overload."""
    unreachable: bool = False
    """No connection could be established."""


class Limiter:
    """Limits the rate of calls to one endpoint, and adapts it to what the endpoint accepts.

    Calls do not wait until the endpoint refuses one. A refusal (429, 503, 529) reduces the rate to
    that of the accepted calls and delays all calls for as long as the server asks; afterwards calls
    start in order, evenly spaced, and the rate grows until the next refusal. Other failures delay
    calls only if several are consecutive. One instance may be used from several event loops and
    threads; each process has its own.

    Args:
        rate: largest number of calls started per second; None means no fixed limit.
        name: name of the endpoint, for the log.
        clock: returns monotonic seconds.

    Raises:
        InvalidInput: the rate is not positive.
    """

    def __init__(
        self,
        *,
        rate: float | None = None,
        name: str = "endpoint",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if rate is not None and not rate > 0:
            raise InvalidInput(f"limiter: rate is {rate}; it must be above 0 calls per second")
        self.name = name
        self._most = math.inf if rate is None else rate
        self._clock = clock
        self._lock = threading.Lock()
        self._queue: deque[object] = deque()
        self._next = -math.inf
        """When the next call may start."""
        self._base = math.inf
        """Rate immediately after the last cut."""
        self._cut_at = -math.inf
        self._backed_off_at = -math.inf
        self._streak = 0
        """Number of back-offs since the last response."""
        self._failing_since: float | None = None
        self._unreachable = False
        self._accepted: deque[list[float]] = deque()
        """Calls that were not refused: ``[start of the second, count]``."""

    @property
    def rate(self) -> float:
        """Calls per second that may start now; infinity without a limit."""
        with self._lock:
            return self._rate(self._clock())

    @property
    def backing_off(self) -> float:
        """Seconds until a call may start."""
        return max(0.0, self._next - self._clock())

    async def turn(self, patience: Callable[[bool], float]) -> float:
        """Wait until a call may start.

        An endpoint that has not responded for longer than the patience counts as down: calls then
        start immediately until one is answered.

        Args:
            patience: returns how many seconds to wait for the endpoint; its argument is whether
                no connection can be established.

        Returns:
            Seconds waited, without those for which a session's clock was held.
        """
        if not self._wait(None, patience):
            return 0.0
        ticket = object()
        with self._lock:
            self._queue.append(ticket)
        begun = self._clock()
        try:
            with off_the_clock() as held:
                while seconds := self._wait(ticket, patience):  # noqa: ASYNC110
                    await asyncio.sleep(seconds)  # several loops may wait: no Event serves them
        finally:
            with self._lock:
                self._queue.remove(ticket)
        return 0.0 if held else self._clock() - begun

    def answered(self) -> None:
        """Record that the endpoint responded, even if it rejected the request's content."""
        with self._lock:
            self._streak = 0
            self._failing_since = None

    def failed(self, begun: float, failure: Transient, first: float, longest: float) -> None:
        """Record that a call failed, and delay the following ones if necessary.

        Args:
            begun: when it started; calls that were running when a back-off began don't prolong it.
            failure: the failure.
            first: seconds of the first back-off, doubled with each further one.
            longest: upper limit of the doubling.
        """
        with self._lock:
            now = self._clock()
            if self._failing_since is None:
                self._failing_since = begun
            self._unreachable = failure.unreachable
            if failure.throttled:
                self._refuse(begun)
            if begun >= self._backed_off_at:
                self._streak += 1
                wait = failure.asked
                if wait is None:
                    alone = self._streak == 1 and not failure.throttled
                    wait = 0.0 if alone else min(longest, first * 2.0 ** (self._streak - 1))
                self._backed_off_at = now
                if failure.throttled:
                    self._cut(now, failure.asked, 1.0 / max(longest, _TICK))
                self._log(failure, wait)
            else:
                wait = failure.asked or 0.0
            self._next = max(self._next, now + wait)

    def is_down(self, patience: Callable[[bool], float]) -> bool:
        """Return whether the endpoint has failed, or will have, for longer than the patience."""
        with self._lock:
            return self._is_down(self._clock(), patience)

    def _wait(self, ticket: object | None, patience: Callable[[bool], float]) -> float:
        """Return how long the call still has to wait; 0.0 starts it."""
        with self._lock:
            now = self._clock()
            if not self._is_down(now, patience):
                wait, rate = self._next - now, self._rate(now)
                place = len(self._queue) if ticket is None else self._queue.index(ticket)
                if wait > 0 or (place and rate < math.inf):
                    return max(wait + place / rate, _TICK)
                self._next = now + 1.0 / rate
            self._count(now)
            return 0.0

    def _is_down(self, now: float, patience: Callable[[bool], float]) -> bool:
        since, limit = self._failing_since, patience(self._unreachable)
        return since is not None and (now - since > limit or self._next - now > limit)

    def _rate(self, now: float) -> float:
        grown = self._base * (1.0 + ((now - self._cut_at) / _RECOVERY) ** 3)
        rate = min(self._most, grown) if self._base < math.inf else self._most
        return min(rate, _PROBES) if self._streak > 1 else rate

    def _cut(self, now: float, asked: float | None, least: float) -> None:
        """Reduce the rate to the observed rate of accepted calls."""
        accepted = max(1.0, sum(count for _, count in self._accepted))
        elapsed = now - self._accepted[0][0] if self._accepted else 0.0
        before = self._rate(now)
        if asked is not None:  # it accepts so many in the time that it counts over
            found = accepted / max(elapsed + asked, _TICK)
            rate = found if before == math.inf else min(0.9 * before, max(found, 0.5 * before))
        else:
            rate = 0.7 * min(before, accepted / max(elapsed, 1.0))
        self._base, self._cut_at = max(rate, least), now

    def _count(self, now: float) -> None:
        if not self._accepted or now - self._accepted[-1][0] > 1.0:
            self._accepted.append([now, 0])
        self._accepted[-1][1] += 1
        while now - self._accepted[0][0] > _WINDOW:
            self._accepted.popleft()

    def _refuse(self, begun: float) -> None:
        """Remove a call from the accepted ones."""
        for second in reversed(self._accepted):
            if second[0] <= begun:
                second[1] = max(0, second[1] - 1)
                return

    def _log(self, failure: Transient, wait: float) -> None:
        if wait >= 1.0:
            _log.warning("%s: %s; the next call starts in %.1f s", self.name, failure.reason, wait)


_shared: WeakValueDictionary[str, Limiter] = WeakValueDictionary()
_sharing = threading.Lock()


def shared_limiter(endpoint: str) -> Limiter:
    """Return the limiter that all clients of an endpoint in this process share.

    Args:
        endpoint: what the server's limits apply to: a base URL, and the model if limits are per
            model.
    """
    with _sharing:
        found = _shared.get(endpoint)
        if found is None:
            found = _shared[endpoint] = Limiter(name=endpoint)
        return found

"""The fleet's side of an actor."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from trajgym.rollout.fleet._spawned import Sender

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ActorLink"]

_LOOK = 0.25
"""Seconds between two looks at whether the actor is to be killed."""
_GRACE = 5.0
"""Seconds that an actor which was killed has to be reported as dead."""
_THREADS = 15.0
"""Seconds for the last messages of an actor that has ended."""


class ActorLink:
    """An actor, and the threads that exchange messages with it; see :class:`Link`.

    Messages are fetched, never pushed: once this side stops to fetch, nothing that a lost actor
    still does can reach the run.

    Args:
        actor: the handle; the actor need not run yet.
        recipe: pickled.
        name: of the threads.
        is_alive: whether the actor's node is still in the cluster; may block.
        receive: called with each message, in a thread.
        on_end: called in that thread at the end.
    """

    def __init__(
        self,
        actor: Any,
        recipe: bytes,
        name: str,
        *,
        is_alive: Callable[[], bool],
        receive: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> None:
        self.pid = 0
        self.end = ""
        self.lost = False
        self._actor = actor
        self._is_alive = is_alive
        self._receive, self._on_end = receive, on_end
        self._kill = threading.Event()
        self._killed_at = 0.0
        self._over = threading.Event()
        self._put = 0
        self._thread = threading.Thread(target=self._work, args=(recipe,), name=name, daemon=True)
        self._sender = Sender(self._deliver, name)
        self._thread.start()

    # Link -----------------------------------------------------------------------------------

    def send(self, *message: Any) -> None:
        """Send a message; ignored if the actor has ended."""
        self._sender.send(message)

    def kill(self) -> None:
        """End the actor now."""
        self._kill.set()

    def join(self, seconds: float) -> bool:
        """Wait for the actor to end and read its last messages; on timeout kill it (False)."""
        self._thread.join(seconds)
        ended = not self._thread.is_alive()
        self._kill.set()
        self._thread.join(_THREADS)
        self._sender.close(0.0)
        return ended

    # Calls of the actor -----------------------------------------------------------------------

    def _deliver(self, message: Any) -> None:
        import ray

        self._put += 1
        try:
            self._call("put", self._put, message)
        except (_Killed, ray.exceptions.RayError) as error:
            raise BrokenPipeError("the actor has ended") from error

    def _work(self, recipe: bytes) -> None:
        import ray

        try:
            self.pid = self._call("start", recipe)
            received, closed = 0, False
            while not closed:
                messages, closed = self._call("fetch", received)
                for message in messages:
                    self._receive(message)
                received += len(messages)
            self.end = "ended"
        except _Killed:
            self.end = "was killed"
        except ray.exceptions.RayError as error:
            self.end = f"died: {_brief(error)}"
            self.lost = _left_with_node(error) or not self._is_alive()
        finally:
            self.end = self.end or "ended"
            self._over.set()
            self._on_end()
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(self._actor)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call the actor and wait; repeat what fails only because it can't be reached now.

        Raises:
            RayError: the actor has died, or can't be started.
            _Killed: this side has given it up.
        """
        import ray

        while True:
            self._check()
            reference = getattr(self._actor, method).remote(*arguments)
            while not ray.wait([reference], timeout=_LOOK)[0]:
                self._check()
            try:
                return ray.get(reference)
            except ray.exceptions.ActorUnavailableError:
                if self._kill.is_set() or self._over.is_set():
                    raise
                self._over.wait(_LOOK)

    def _check(self) -> None:
        """Kill the actor if that is wanted, and give it up if it is not reported as dead then."""
        if self._over.is_set():
            raise _Killed
        if not self._kill.is_set():
            return
        if not self._killed_at:
            import ray

            self._killed_at = time.monotonic()
            ray.kill(self._actor)
        elif time.monotonic() - self._killed_at > _GRACE:
            raise _Killed


class _Killed(Exception):
    """The actor is given up."""


def _left_with_node(error: Exception) -> bool:
    return getattr(error, "preempted", False) or "its node has died" in str(error)


def _brief(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:500]

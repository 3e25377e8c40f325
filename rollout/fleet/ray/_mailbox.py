"""Messages that are fetched by the other side, each delivered exactly once."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Mailbox"]


class Mailbox:
    """A worker's channel to its fleet; see :class:`trajgym.rollout.fleet._child.Channel`.

    The fleet fetches what the worker sends. Calls of an actor can fail with the network and be
    tried again, so messages are numbered in both directions: what the fleet has not confirmed is
    returned again, and what was put twice is yielded once.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._out: deque[Any] = deque()
        self._sent = 0
        """Number of messages that the fleet has confirmed."""
        self._in: deque[Any] = deque()
        self._received = 0
        """Number of messages that the fleet has put here."""
        self._closed = self._lost = False
        self.fetched_at = time.monotonic()

    # The worker's side ----------------------------------------------------------------------

    def send(self, message: Any) -> None:
        """Keep a message until the fleet has fetched it."""
        with self._changed:
            self._out.append(message)
            self._changed.notify_all()

    def messages(self) -> Iterator[Any]:
        """Yield the fleet's messages until the fleet is gone; blocks."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._in or self._lost)
                if not self._in:
                    return
                message = self._in.popleft()
            yield message

    def close(self) -> None:
        """Send nothing more; the fleet notices once it has fetched all messages."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # The fleet's side -----------------------------------------------------------------------

    def put(self, number: int, message: Any) -> None:
        """Put a message here; ``number`` counts them from 1, and repeated ones are ignored."""
        with self._changed:
            if number > self._received:
                self._received = number
                self._in.append(message)
                self._changed.notify_all()

    def fetch(self, received: int, seconds: float) -> tuple[list[Any], bool]:
        """Return the messages that follow the first ``received``, and whether none will follow.

        Args:
            received: number of messages that have arrived.
            seconds: longest time to wait for one.
        """
        with self._changed:
            self.fetched_at = time.monotonic()
            while self._sent < received:
                self._out.popleft()
                self._sent += 1
            self._changed.wait_for(lambda: self._out or self._closed, seconds)
            return list(self._out), self._closed

    def lose(self) -> None:
        """Let :meth:`messages` end: the fleet is gone."""
        with self._changed:
            self._lost = True
            self._changed.notify_all()

"""A running call: one exchange with the engine and the clients that wait for its answer."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from trajgym.server.joining import Earlier

if TYPE_CHECKING:
    from trajgym.server.dialects import ClientCall
    from trajgym.server.joining import Request, Seen
    from trajgym.server.joining._repeat import State
    from trajgym.trajectory import Try

__all__ = ["Flight", "Listener"]


class Listener:
    """A client that waits for a call's answer."""

    __slots__ = ("gone", "news")

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.gone = False
        """True once its connection has closed."""

    def leave(self) -> None:
        """Note that its connection has closed."""
        self.gone = True
        self.news.set()


class Flight:
    """A request from its arrival on; all its listeners receive the same response."""

    __slots__ = (
        "arrived", "call", "content_type", "delivered", "digest", "ended", "headers",
        "keep_alive", "listeners", "pieces", "place_again", "replayed", "request",
        "retry_of", "rule", "seen", "state", "status", "task", "turns",
    )  # fmt: skip

    def __init__(self, digest: str, call: ClientCall | None, request: Request | None) -> None:
        self.digest = digest
        self.call = call
        self.request = request
        self.seen: list[Seen] = []
        self.rule = ""
        self.retry_of: list[Try] = []
        self.place_again = False
        self.arrived = time.time()
        self.ended = 0.0
        self.state: State = "running"
        self.status = 0
        self.content_type = "application/json"
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = b""
        """What a silent stream is kept alive with; empty for a whole answer."""
        self.pieces: list[bytes] = []
        self.listeners: set[Listener] = set()
        self.delivered = False
        self.replayed = False
        self.turns: list[int] = []
        self.task: asyncio.Task[None] | None = None

    @property
    def earlier(self) -> Earlier:
        """This call as the rules for repeated requests see it."""
        return Earlier(
            state=self.state,
            client=bool(self.listeners),
            delivered=self.delivered,
            followed=any(seen.followed for seen in self.seen),
            replayed=self.replayed,
            ended=self.ended,
        )

    def begin(self, status: int, content_type: str) -> None:
        """Set status and content type of the response."""
        self.status, self.content_type = status, content_type
        self._notify()

    def send(self, piece: bytes) -> None:
        """Append a piece to the response body."""
        if piece:
            self.pieces.append(piece)
            self._notify()

    def end(self, state: State) -> None:
        """Mark the response as ended."""
        self.state, self.ended = state, time.time()
        self.call = self.request = None  # they hold whole conversations
        self._notify()

    def forget_pieces(self) -> None:
        """Free the response body once it can't be replayed."""
        self.pieces = []

    def _notify(self) -> None:
        for listener in self.listeners:
            listener.news.set()

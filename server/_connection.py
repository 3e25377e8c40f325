"""A client's connection under uvicorn: its deadlines, and what ASGI does not tell about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Connection", "connection_of", "protocol"]

_EXTENSION = "trajgym.connection"
_MOST_HELD = 1 << 16
"""Bytes of a response that are written at once, although more may follow in this iteration."""


class Connection(Protocol):
    """A connection that keeps the limits on headers and on sending by itself."""

    @property
    def complete(self) -> bool:
        """True if the whole body of the request has arrived."""

    def watch(self, gone: Callable[[], None]) -> None:
        """Call ``gone`` once if the client disconnects, at once if it has; replaces a watch."""

    def unwatch(self) -> None:
        """End the watch."""

    async def drained(self) -> bool:
        """Wait until the operating system has accepted what was written, up to a small rest.

        Returns False if the connection was lost before: the client left, or read nothing for too
        long.
        """


def connection_of(scope: dict[str, Any]) -> Connection | None:
    """Return the connection of a request; None under servers other than ours."""
    extensions = scope.get("extensions")
    return None if extensions is None else extensions.get(_EXTENSION)


class _Joined:
    """A transport that writes at once what is written in one iteration of the event loop.

    uvicorn writes the head of a response and its body separately: that is two system calls, and the
    client wakes up twice.
    """

    __slots__ = ("_held", "_loop", "_size", "plain")

    def __init__(self, plain: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.plain = plain
        self._loop = loop
        self._held: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        """Write with what else is written in this iteration."""
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)
        self._size += len(data)
        if self._size > _MOST_HELD:
            self.flush()

    def flush(self) -> None:
        """Write now."""
        held = self._held
        if held and not self.plain.is_closing():
            self.plain.write(b"".join(held))
        self._held, self._size = [], 0

    def close(self) -> None:
        """Close once everything is written."""
        self.flush()
        self.plain.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


def protocol(header_seconds: float, send_seconds: float) -> type[Any]:
    """Return uvicorn's HTTP protocol with deadlines for headers and for clients that don't read."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Base
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        h11: type[Any] = H11Protocol
        return h11

    class Bounded(Base):  # type: ignore[misc, valid-type, unused-ignore]
        """Closes connections whose first request, or whose headers, are not complete in time."""

        transport: Any
        _timer: asyncio.TimerHandle | None = None
        _slow: asyncio.TimerHandle | None = None
        _gone: Callable[[], None] | None = None
        _lost = False
        _cut = False

        def connection_made(self, transport: Any) -> None:
            self._extensions = {_EXTENSION: self}
            super().connection_made(_Joined(transport, self.loop))
            self._arm()

        def connection_lost(self, exc: Exception | None) -> None:
            self._lost = True
            self._cut = self.flow.write_paused  # not if everything was written before
            self._disarm()
            super().connection_lost(exc)  # resumes writing
            if self._gone is not None:
                self._gone()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["extensions"] = self._extensions
            self._arm()

        def on_headers_complete(self) -> None:
            self._disarm()
            super().on_headers_complete()

        def handle_websocket_upgrade(self) -> None:
            self.transport.flush()
            self.transport = self.transport.plain
            super().handle_websocket_upgrade()

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._slow is None:
                self._slow = self.loop.call_later(send_seconds, self._expire)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._slow is not None:
                self._slow.cancel()
                self._slow = None

        @property
        def complete(self) -> bool:
            return not self.cycle.more_body  # of the newest request, so of this one as well

        def watch(self, gone: Callable[[], None]) -> None:
            self._gone = gone
            self.flow.resume_reading()  # a large body paused it; a disconnect has to be read
            if self._lost:
                gone()

        def unwatch(self) -> None:
            self._gone = None

        async def drained(self) -> bool:
            if self.flow.write_paused:
                await self.flow.drain()  # until writing is resumed, or the connection is lost
            return not self._cut

        def _arm(self) -> None:
            self._disarm()
            self._timer = self.loop.call_later(header_seconds, self._expire)

        def _disarm(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _expire(self) -> None:
            if self.transport is not None:
                self.transport.abort()

    return Bounded

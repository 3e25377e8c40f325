"""Parsing of server-sent events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajgym.server._errors import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EventReader"]


class EventReader:
    """Splits a stream of bytes into the data of its events.

    Args:
        limit: largest size of an event in bytes.
    """

    def __init__(self, limit: int = 64 << 20) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._limit = limit

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the data of every event that these bytes complete.

        Raises:
            UpstreamError: an event is longer than the limit.
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > self._limit:
            raise UpstreamError(
                f"an event of the engine's stream is larger than {self._limit} bytes"
            )
        for raw in lines:
            line = raw.rstrip(b"\r")
            if not line:
                if self._data:
                    yield b"\n".join(self._data)
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))

"""Bounded capture of output of any length, in time linear in what was read."""

from __future__ import annotations

from collections import deque

__all__ = ["Capture", "MarkedCapture"]

CHUNK = 1 << 16


class Capture:
    """Keeps the first and the last bytes of a stream and counts those between them.

    Args:
        limit: maximum bytes kept; half of them are the head.
    """

    __slots__ = ("_head", "_head_room", "_tail", "_tail_limit", "_tail_size", "total")

    def __init__(self, limit: int) -> None:
        self._head = bytearray()
        self._head_room = (limit + 1) // 2
        self._tail: deque[bytearray] = deque()
        self._tail_limit = limit - self._head_room
        self._tail_size = 0
        self.total = 0

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the stream."""
        self.total += len(data)
        if self._head_room:
            taken = data[: self._head_room]
            self._head += taken
            self._head_room -= len(taken)
            data = data[len(taken) :]
        if not data:
            return
        self._tail_size += len(data)
        if self._tail and len(self._tail[-1]) + len(data) <= CHUNK:
            self._tail[-1] += data
        else:
            self._tail.append(bytearray(data))
        while self._tail_size - len(self._tail[0]) >= self._tail_limit:
            self._tail_size -= len(self._tail.popleft())
            if not self._tail:
                return

    def result(self) -> tuple[bytes, int]:
        """Return what was kept, and how many bytes were dropped from its middle."""
        tail = b"".join(self._tail)
        if len(tail) > self._tail_limit:
            tail = tail[len(tail) - self._tail_limit :]
        kept = bytes(self._head) + tail
        return kept, self.total - len(kept)


class MarkedCapture:
    """A capture of a stream that ends with a secret mark and one line after it.

    Args:
        mark: secret bytes, known only to what writes the end.
        limit: see :class:`Capture`.
    """

    __slots__ = ("_after", "_capture", "_mark", "_pending")

    def __init__(self, mark: bytes, limit: int) -> None:
        self._capture = Capture(limit)
        self._mark = mark
        self._pending = b""
        self._after: bytearray | None = None

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes; what follows the line after the mark is :attr:`rest`."""
        if self._after is not None:
            if len(self._after) < CHUNK:
                self._after += data
            return
        seen = self._pending + data
        at = seen.find(self._mark)
        if at >= 0:
            self._capture.feed(seen[:at])
            self._after = bytearray(seen[at + len(self._mark) :])
            self._pending = b""
            return
        # The mark may be split over two reads: hold back what could be its beginning.
        hold = len(self._mark) - 1
        self._capture.feed(seen[:-hold])
        self._pending = seen[-hold:]

    @property
    def ending(self) -> bytes | None:
        """The line after the mark; None until it is complete."""
        if self._after is None or b"\n" not in self._after:
            return None
        return bytes(self._after).partition(b"\n")[0]

    @property
    def rest(self) -> bytes:
        """What another process wrote after that line, up to a bound."""
        return bytes(self._after or b"").partition(b"\n")[2]

    def result(self) -> tuple[bytes, int]:
        """Return what was kept of the bytes before the mark, and how many were dropped."""
        self._capture.feed(self._pending)
        self._pending = b""
        return self._capture.result()

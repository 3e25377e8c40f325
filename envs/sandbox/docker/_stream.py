"""The attached stream of an exec, read and written at the socket, without a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import cast

from trajgym.envs.sandbox._channel import Channel
from trajgym.envs.sandbox.docker._errors import ContainerGone, EngineLost, EngineRefused

__all__ = ["ExecStream", "attach"]

BUFFER = 1 << 18
_local = threading.local()


def _buffer() -> memoryview:
    """One buffer per thread: its content is consumed before the next read."""
    if not hasattr(_local, "buffer"):
        _local.buffer = memoryview(bytearray(BUFFER))
    return cast("memoryview", _local.buffer)


class ExecStream(Channel, asyncio.BufferedProtocol):
    """One exec: its stdin, and its stdout and stderr in frames after an HTTP response.

    Args:
        exec_id: the engine's id of the exec.
    """

    def __init__(self, exec_id: str) -> None:
        super().__init__()
        self.exec_id = exec_id
        self.answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.said = b""
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._head: bytearray | None = bytearray()
        self._frame = b""
        self._kind = 0
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.BaseProtocol`; asks for the upgrade."""
        self._transport = cast("asyncio.Transport", transport)
        body = json.dumps({"Detach": False, "Tty": False}).encode()
        head = (
            f"POST /exec/{self.exec_id}/start HTTP/1.1\r\nHost: docker\r\n"
            "Content-Type: application/json\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + body)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See :class:`asyncio.BufferedProtocol`."""
        del sizehint
        return _buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """See :class:`asyncio.BufferedProtocol`."""
        data = _buffer()[:nbytes]
        if self._head is not None:
            self._answer(data)
        else:
            self._frames(data)

    def _answer(self, data: memoryview) -> None:
        assert self._head is not None
        self._head += data
        head, found, rest = bytes(self._head).partition(b"\r\n\r\n")
        if not found:
            if len(self._head) > BUFFER:
                self.close()
            return
        status = int(head.split(b" ", 2)[1])
        self.said = rest[:4096]
        if not self.answered.done():
            self.answered.set_result(status)
        if status in {101, 200}:
            self._head = None
            self._frames(memoryview(rest))

    def _frames(self, data: memoryview) -> None:
        at, size = 0, len(data)
        while at < size:
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                at += len(piece)
                self.take(self._kind, piece)
                continue
            need = 8 - len(self._frame)
            self._frame += data[at : at + need]
            at += need
            if len(self._frame) == 8:
                self._kind = self._frame[0]
                self._left = int.from_bytes(self._frame[4:], "big")
                self._frame = b""

    def eof_received(self) -> bool:
        """See :class:`asyncio.BaseProtocol`."""
        self.end()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        del exc
        self._writable.set()
        if not self.answered.done():
            self.answered.set_result(0)
        self.end()

    def pause_writing(self) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        self._writable.set()

    def send(self, data: bytes) -> None:
        """See :meth:`Channel.send`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def feed(self, data: bytes) -> None:
        """Send all of it, then end of file; stops silently if the other side has closed."""
        for at in range(0, len(data), BUFFER):
            if self.ended.done():
                return
            self.send(data[at : at + BUFFER])
            await self._writable.wait()
        transport = self._transport
        if transport is not None and not transport.is_closing() and transport.can_write_eof():
            transport.write_eof()

    def close(self) -> None:
        """See :meth:`Channel.close`."""
        if self._transport is not None:
            self._transport.abort()
        self.end()


async def attach(host: str, exec_id: str, *, seconds: float = 30.0) -> ExecStream:
    """Start an exec that was created and attach to it.

    Raises:
        EngineLost, ContainerGone, EngineRefused: the engine did not answer, or refused.
    """
    loop = asyncio.get_running_loop()
    stream: ExecStream | None = None
    try:
        async with asyncio.timeout(seconds):
            scheme, _, rest = host.partition("://")
            if scheme == "unix":
                _, stream = await loop.create_unix_connection(lambda: ExecStream(exec_id), rest)
            else:
                name, _, port = rest.rstrip("/").rpartition(":")
                _, stream = await loop.create_connection(
                    lambda: ExecStream(exec_id), name, int(port)
                )
            status = await asyncio.shield(stream.answered)
            if status not in {0, 101, 200}:
                await asyncio.wait({stream.ended}, timeout=1.0)
    except OSError as error:  # a TimeoutError is one, too
        _drop(stream)
        raise EngineLost(f"no answer from {host}: {error or 'in time'}") from None
    except BaseException:
        _drop(stream)
        raise
    if status in {101, 200}:
        return stream
    _drop(stream)
    if not status:
        raise EngineLost(f"{host} closed the connection")
    kind = ContainerGone if status in {404, 409} else EngineRefused
    raise kind(f"the engine answered {status}: {stream.said.decode(errors='replace').strip()}")


def _drop(stream: ExecStream | None) -> None:
    if stream is not None:
        stream.close()

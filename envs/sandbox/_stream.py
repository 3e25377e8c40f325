"""A long-running program in a sandbox that exchanges lines on its standard streams."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from typing import TYPE_CHECKING

from trajgym.envs._threads import finish_despite_cancel
from trajgym.envs.sandbox._channel import STDERR, LateOutput
from trajgym.envs.sandbox._errors import SandboxError
from trajgym.envs.sandbox._protocol import quote
from trajgym.trajectory._internal import AsyncClosing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs.sandbox._shell import ShellPort

__all__ = ["Stream"]


class Stream(AsyncClosing):
    """A running program's stdin and stdout, in lines; made by :meth:`Sandbox.stream`.

    Needs no network. The program ends with its sandbox at the latest.

    Args:
        port: a shell that becomes the program.
        limit: bytes of unread output; a program that writes more is cut off.
    """

    def __init__(self, port: ShellPort, limit: int) -> None:
        self._port = port
        self._limit = limit
        self._lines: deque[bytes] = deque()
        self._held = 0
        self._partial = bytearray()
        self._arrived = asyncio.Event()
        self._errors = LateOutput()
        self._overflow = False
        self._closed = False
        port.channel.sink = self._take
        port.channel.ended.add_done_callback(lambda _: self._arrived.set())

    async def begin(self, command: Sequence[str], cwd: str, *, timeout: float) -> None:
        """Replace the shell by the program.

        Raises:
            SandboxError: it did not start in time.
        """
        mark = secrets.token_hex(16)
        program = " ".join(map(quote, command))
        # A shell reads ahead: the program's input must be sent only after the mark.
        line = f"cd -- {quote(cwd)} && echo {mark} && exec {program} 7>&- 8>&- || exit 126\n"
        self._port.channel.send(line.encode())
        try:
            async with asyncio.timeout(timeout):
                await self._wait()
                if self._lines:
                    await self.read()
        except TimeoutError:
            await self.close()
            raise SandboxError(f"{command[0]} did not start within {timeout:g} s") from None
        except BaseException:
            await self.close()
            raise

    @property
    def ended(self) -> bool:
        """Whether the program's output has ended."""
        return self._closed or self._overflow or self._port.channel.ended.done()

    @property
    def errors(self) -> bytes:
        """What the program wrote to stderr; head and tail, bounded."""
        return self._errors.text()

    def _take(self, kind: int, data: bytes | memoryview) -> None:
        if kind == STDERR:
            self._errors(kind, data)
            return
        if self._overflow:
            return
        self._held += len(data)
        self._overflow = self._held > self._limit
        self._partial += data
        # A long line arrives in many pieces: look for its end only in the new one.
        if self._overflow or b"\n" in bytes(data):
            *lines, rest = self._partial.split(b"\n")
            self._lines += map(bytes, lines)
            self._partial = rest
            self._arrived.set()

    def send(self, line: bytes) -> None:
        """Write one line to the program's stdin; does nothing once it has ended."""
        self._port.channel.send(line + b"\n")

    async def read(self) -> bytes:
        """Return the next line of stdout, without its line break. Has no deadline of its own.

        Raises:
            SandboxError: the program has ended, or its unread output exceeds the limit.
            SandboxDied: it has ended because the sandbox is gone.
        """
        await self._wait()
        if self._overflow:
            raise SandboxError(f"a program wrote {self._limit} bytes that were not read")
        if not self._lines:
            if not self._closed:
                await self._port.exit_code()  # raises if it was not the program that ended
            said = self.errors.decode(errors="replace").strip()[-2000:]
            raise SandboxError(f"the program has ended{': ' if said else ''}{said}")
        line = self._lines.popleft()
        self._held -= len(line) + 1
        return line

    async def _wait(self) -> None:
        while not (self._lines or self.ended):
            self._arrived.clear()
            await self._arrived.wait()

    async def close(self) -> None:
        """Kill the program and everything it started. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._arrived.set()
        with contextlib.suppress(SandboxError):
            await finish_despite_cancel(self._port.kill())

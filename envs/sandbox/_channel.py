"""The streams of one shell inside a sandbox, and one request to it."""

from __future__ import annotations

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._base import CommandResult
from trajgym.envs.sandbox._capture import Capture, MarkedCapture
from trajgym.envs.sandbox._protocol import Report, read_report

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Channel", "LateOutput", "Request"]

STDERR = 2


class Channel(ABC):
    """The input and outputs of a shell; made by the sandbox's engine."""

    def __init__(self) -> None:
        self.sink: Callable[[int, bytes | memoryview], None] | None = None
        """Called with 1 (stdout) or 2 (stderr) and bytes that are valid only during the call."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the shell has exited or its streams were closed."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Write to the shell's stdin; does nothing once it has exited."""

    @abstractmethod
    def close(self) -> None:
        """Close the streams immediately. Idempotent."""

    def take(self, kind: int, data: bytes | memoryview) -> None:
        """Pass output to the sink; without a sink it is dropped."""
        if self.sink is not None:
            self.sink(kind, data)

    def check(self) -> None:
        """Check whether the shell has ended; called when one of its streams has."""

    def end(self) -> None:
        """Mark the channel as ended."""
        if not self.ended.done():
            self.ended.set_result(None)


class LateOutput:
    """Output that processes write after the command that started them has ended.

    Args:
        limit: bytes kept; both streams count together.
    """

    def __init__(self, limit: int = 1 << 16) -> None:
        self._capture = Capture(limit)

    def __call__(self, kind: int, data: bytes | memoryview) -> None:
        """Take the next bytes; a sink of a channel."""
        del kind
        self._capture.feed(data)

    def text(self) -> bytes:
        """Return what was kept."""
        return self._capture.result()[0]


class Request:
    """One command of a shell while it runs.

    Args:
        shell: runs it; the request ends if the shell exits.
        outputs: where the command's output and the report come; the shell's own channel, or
            another one that replaced it.
        limit: bytes kept of each stream.
        key: what the report begins with; random by default.
    """

    def __init__(
        self,
        shell: Channel,
        outputs: Channel,
        limit: int,
        key: tuple[str, str] | None = None,
    ) -> None:
        self.key = key or (secrets.token_hex(8), secrets.token_hex(8))
        self.begun = time.monotonic()
        mark = "".join(self.key).encode()
        self._out = MarkedCapture(mark, limit)
        self._err = MarkedCapture(mark, limit)
        self._shell = shell
        self._outputs = outputs
        self._done: asyncio.Future[Report | None] = asyncio.get_running_loop().create_future()
        outputs.sink = self._feed
        for channel in {shell, outputs}:
            channel.ended.add_done_callback(self._cut)

    def _feed(self, kind: int, data: bytes | memoryview) -> None:
        (self._err if kind == STDERR else self._out).feed(data)
        ending = self._err.ending
        if ending is not None and self._out.ending is not None and not self._done.done():
            self._done.set_result(read_report(ending))

    def _cut(self, ended: asyncio.Future[None]) -> None:
        del ended
        if not self._done.done():
            self._done.set_result(None)

    async def ended(self) -> Report | None:
        """Wait for the report; None if the shell exited without one, or it is malformed."""
        return await asyncio.shield(self._done)

    def finish(self, late: LateOutput | None = None) -> None:
        """Detach from the channels.

        Args:
            late: takes later output, which is not this command's; dropped if None.
        """
        self._outputs.sink = late
        if late is not None:
            for kind, capture in ((1, self._out), (STDERR, self._err)):
                late(kind, capture.rest)
        for channel in {self._shell, self._outputs}:
            channel.ended.remove_done_callback(self._cut)

    def result(
        self, exit_code: int, *, timed_out: bool = False, oom_killed: bool = False, note: str = ""
    ) -> CommandResult:
        """Return what was captured; ``note`` is added to stderr."""
        stdout, dropped_stdout = self._out.result()
        stderr, dropped_stderr = self._err.result()
        return CommandResult(
            exit_code,
            stdout,
            stderr + note.encode(),
            timed_out=timed_out,
            oom_killed=oom_killed,
            dropped_stdout=dropped_stdout,
            dropped_stderr=dropped_stderr,
            seconds=time.monotonic() - self.begun,
        )

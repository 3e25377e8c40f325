"""Shells that keep their state from command to command."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs._threads import finish_despite_cancel
from trajgym.envs.sandbox._channel import Channel, LateOutput, Request
from trajgym.envs.sandbox._errors import SandboxDied, SandboxError
from trajgym.envs.sandbox._processes import LIST, Process, read_processes
from trajgym.envs.sandbox._protocol import quote, script_text, switch_text
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import AsyncClosing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from trajgym.envs.sandbox._base import CommandResult
    from trajgym.envs.sandbox._command import CommandSandbox
    from trajgym.envs.sandbox._protocol import Report

__all__ = ["Shell", "ShellPort", "ShellState"]

RESYNC_SECONDS = (1.5, 5.0)
"""How long a shell may take to go on: once its command is killed, and then its subshells, too."""
HELPER_SECONDS = 15.0
KILLED = 137
# The same path again, which may be a different directory by now.
COME_HOME = '_tg_old=${OLDPWD-}; command cd -- "$PWD" || :; OLDPWD=$_tg_old'
STATE_LIMIT = 1 << 18


class ShellPort(ABC):
    """One shell process as its engine offers it."""

    channel: Channel

    @abstractmethod
    async def tap(self) -> tuple[Channel, str, str]:
        """Return fresh outputs, with the paths by which the shell can open them inside."""

    @abstractmethod
    async def stop(self, mark: str) -> None:
        """Kill every process whose mark has this prefix."""

    @abstractmethod
    async def stop_children(self) -> None:
        """Kill the shell's subshells, but not the shell."""

    @abstractmethod
    async def exit_code(self) -> int:
        """The status with which the shell has ended.

        Raises:
            SandboxDied: it ended because the sandbox is gone.
        """

    @abstractmethod
    async def oom_kills(self, report: Report | None) -> int:
        """Return how many processes the memory limit has killed since the last call.

        Args:
            report: report of the command; None if the shell died.
        """

    @abstractmethod
    async def kill(self) -> None:
        """Kill the shell and close its streams."""

    @abstractmethod
    async def close(self, mark: str) -> None:
        """End the shell and every process whose mark has this prefix."""


class ShellState(NamedTuple):
    """The state of a shell that a fork copies."""

    name: str
    program: str
    cwd: str
    exports: str
    """Text that the shell reads to restore its environment; empty if it could not be read."""


class Shell(AsyncClosing):
    """One shell inside a sandbox: directory, variables and functions stay between commands.

    Commands of one shell run one after the other; a second one waits for the first. Processes
    left in the background keep running; what they write later is :attr:`late_output`, never part
    of the next command's output. A command that ends the shell (``exit``, ``exec``, ``set -e`` and
    a failure) returns its status; the next one gets a new shell in the same directory, and a note
    on stderr reports it.

    Made by :meth:`Sandbox.shell`.
    """

    def __init__(
        self,
        name: str,
        program: str,
        cwd: str,
        sandbox: CommandSandbox,
        open_port: Callable[[], Awaitable[ShellPort]],
    ) -> None:
        self.name = name
        self.program = program
        self.cwd = cwd
        """The working directory after the last command."""
        self._sandbox = sandbox
        self._open_port = open_port
        self._port: ShellPort | None = None
        self._outputs: Channel | None = None
        self._late: list[LateOutput] = []
        self._held = False
        self._note = ""
        self._lock = asyncio.Lock()
        self._closed = False
        self._mark = f"{secrets.token_hex(12)}."
        self._count = 0

    @property
    def busy(self) -> bool:
        """Whether a command is running, or processes of an earlier one may be."""
        return self._lock.locked() or self._held

    @property
    def late_output(self) -> bytes:
        """What background processes wrote after their commands had ended; bounded."""
        return b"".join(late.text() for late in self._late)

    async def run(self, command: str, *, timeout: float = 60.0, stdin: str = "") -> CommandResult:
        """Run a command line in this shell.

        Args:
            command: may be several lines.
            timeout: seconds until everything it started is killed; the shell stays, unless it
                was the shell itself that was busy (then the note says that its state is lost).
            stdin: lines for a program that asks questions; it sees end of file after them.

        Raises:
            InvalidInput: the timeout is not positive, or the text holds a NUL.
            SandboxDied: the sandbox is gone, or this shell was closed.
        """
        if not (timeout > 0 and math.isfinite(timeout)):
            raise InvalidInput(f"timeout={timeout} must be a positive number of seconds")
        if "\0" in command or "\0" in stdin:
            raise InvalidInput("a command for a shell can't hold a NUL character")
        command, stdin = (text.encode(errors="replace").decode() for text in (command, stdin))
        if stdin and not stdin.endswith("\n"):
            stdin += "\n"
        async with self._lock:
            port, outputs = await self._ready()
            note, self._note = self._note, ""
            result = await self._run(port, outputs, command, timeout, stdin)
        return result._replace(stderr=note.encode() + result.stderr)

    async def _ready(self) -> tuple[ShellPort, Channel]:
        """Return a running shell, and where its next output goes."""
        if self._closed:
            raise SandboxDied(f"shell {self.name!r} is closed; open another one")
        if self._port is None or self._port.channel.ended.done():
            await self._open()
        assert self._port is not None
        if self._held:
            # Background processes keep the outputs that they were started with.
            self._outputs, stdout, stderr = await self._port.tap()
            self._port.channel.send(switch_text(stdout, stderr))
            self._held = False
        assert self._outputs is not None
        return self._port, self._outputs

    async def _open(self, state: str = "") -> None:
        self._port = await self._open_port()
        self._outputs = self._port.channel
        self._held = False
        if self._closed:
            await self._port.close(self._mark)
            raise SandboxDied(f"shell {self.name!r} was closed")
        for line in (state, f"cd -- {quote(self.cwd)}"):
            if line:
                done = await self._run(self._port, self._outputs, line, HELPER_SECONDS, "")
                self._note += done.stderr.decode(errors="replace")

    async def restore(self, state: ShellState) -> None:
        """Open the shell with the environment and directory of another one."""
        async with self._lock:
            await self._open(state.exports)

    async def _run(
        self, port: ShellPort, outputs: Channel, command: str, timeout: float, stdin: str
    ) -> CommandResult:
        self._count += 1
        mark = f"{self._mark}{self._count}."
        request = Request(port.channel, outputs, self._sandbox.spec.limits.output)
        port.channel.send(script_text(command, mark, stdin, request.key))
        late = LateOutput()

        async def kill() -> None:
            await self._stop(port, request, mark)

        watch = self._sandbox.watch_disk(kill)
        try:
            async with asyncio.timeout(timeout):
                report = await request.ended()
        except TimeoutError:
            note = await finish_despite_cancel(self._stop(port, request, mark))
            return request.result(-1, timed_out=True, note=note)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):
                await finish_despite_cancel(self._stop(port, request, mark))
            raise
        finally:
            watch.stop()
            request.finish(late)
        if report is None:
            return await self._ended(port, request, watch.note)
        self._settle(report, late)
        oom = await port.oom_kills(report) > 0
        return request.result(report.status, oom_killed=oom, note=watch.note)

    def _settle(self, report: Report, late: LateOutput | None) -> None:
        self.cwd = report.cwd or self.cwd
        self._held = not report.clean
        if late is not None and self._held:
            self._late.append(late)
            del self._late[:-16]

    async def _stop(self, port: ShellPort, request: Request, mark: str) -> str:
        """Kill what a command started; return a description of what the shell lost."""
        stops = (partial(port.stop, mark), port.stop_children)
        for stop, seconds in zip(stops, RESYNC_SECONDS, strict=True):
            await stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    report = await request.ended()
                if report is None:
                    break
                self._settle(report, None)
                return ""
        await port.kill()
        return self._lose("was busy itself and was killed")

    async def _ended(self, port: ShellPort, request: Request, note: str) -> CommandResult:
        code = await port.exit_code()
        await port.kill()
        oom = code == KILLED and await port.oom_kills(None) > 0
        return request.result(code, oom_killed=oom, note=note + self._lose("has ended"))

    def _lose(self, why: str) -> str:
        self._port = self._outputs = None
        return (
            f"\ntrajgym: this shell {why}; the next command gets a new one in {self.cwd}, without "
            "its variables and functions\n"
        )

    @property
    def idle_port(self) -> ShellPort | None:
        """The shell process if it exists and neither it nor anything it started is running."""
        port = self._port
        return None if port is None or self.busy or port.channel.ended.done() else port

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold back commands while the context is active, so that directories can be replaced."""
        async with self._lock:
            yield
            if self._port is not None and self._outputs is not None:
                await self._run(self._port, self._outputs, COME_HOME, HELPER_SECONDS, "")

    async def processes(self) -> list[Process]:
        """List what runs in the background, the sandbox's own helpers left out.

        Raises:
            SandboxDied: the sandbox is gone, or this shell was closed.
        """
        done = await self.run(LIST, timeout=HELPER_SECONDS)
        return read_processes(done.stdout)

    async def state(self) -> ShellState:
        """Return the state that a fork copies; the environment is empty while a command runs."""
        exports = ""
        if not self._lock.locked() and self._port is not None:
            done = await self.run("export -p", timeout=HELPER_SECONDS)
            if done.ok and len(done.stdout) < STATE_LIMIT and not done.dropped_stdout:
                exports = done.stdout.decode(errors="replace")
        return ShellState(self.name, self.program, self.cwd, exports)

    async def close(self) -> None:
        """End the shell and its background processes; its name becomes free. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._sandbox.shells.get(self.name) is self:
            del self._sandbox.shells[self.name]
        if self._port is not None:
            with contextlib.suppress(SandboxError):
                await finish_despite_cancel(self._port.close(self._mark))

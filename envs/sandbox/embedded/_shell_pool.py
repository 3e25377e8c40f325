"""The idle shells of an embedded sandbox, each in namespaces of its own."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from trajgym.envs._threads import finish_despite_cancel
from trajgym.envs.sandbox._channel import Request
from trajgym.envs.sandbox._errors import SandboxDied
from trajgym.envs.sandbox._protocol import FEED, MARK, ready_text
from trajgym.envs.sandbox.embedded._plan import SHELL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trajgym.envs.sandbox.embedded._process_channel import ProcessChannel

    Spawn = Callable[[str, Sequence[str], Mapping[str, str]], Awaitable[ProcessChannel]]

__all__ = ["ShellPool", "end"]

IDLE = 2
"""Number of idle shells that are kept; more are opened while more commands run concurrently."""
READY_SECONDS = 30.0
KILL_SECONDS = 10.0


class ShellPool:
    """The shells of one sandbox; a command that leaves a process running ends with its shell.

    Args:
        name: name of the sandbox, for messages.
        limits: shell lines that set limits.
        spawn: starts a script with arguments and variables in new namespaces.
    """

    def __init__(self, name: str, limits: str, spawn: Spawn) -> None:
        self._name = name
        self._limits = limits
        self._spawn = spawn
        self._idle: list[ProcessChannel] = []
        self._opening: asyncio.Task[ProcessChannel] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def warm(self) -> None:
        """Begin to open a shell, so that the next command need not wait for it."""
        if self._opening is None and not self._idle and not self._closed:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_seen)

    async def settle(self) -> None:
        """Wait until the shell that :meth:`warm` began to open waits for requests."""
        if self._opening is not None:
            await asyncio.wait({self._opening})

    async def take(self) -> ProcessChannel:
        """Return a shell that no other command uses.

        Raises:
            SandboxDied: none can be opened; the message includes the output.
        """
        while self._idle:
            shell = self._idle.pop()
            if not shell.ended.done():
                return shell
            self._end(shell)
        opening, self._opening = self._opening, None
        if opening is None:
            return await self._open()
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._end_opened)
            raise

    def give(self, shell: ProcessChannel) -> None:
        """Return a shell that is ready for another command to the pool."""
        if self._closed or shell.ended.done() or len(self._idle) >= IDLE:
            self._end(shell)
        else:
            self._idle.append(shell)

    async def open_feed(self, words: Sequence[str], env: Mapping[str, str]) -> ProcessChannel:
        """Start a shell for one command with much stdin; ``words`` begin with its directory.

        Raises:
            SandboxDied: as for :meth:`take`.
        """
        key = (secrets.token_hex(8), secrets.token_hex(8))
        shell = await self._spawn(f"{self._limits}\n{FEED}", [*key, *words], env)
        await self._ready(shell, Request(shell, shell, 4096, key))
        return shell

    async def _open(self) -> ProcessChannel:
        mark = f"shell-{secrets.token_hex(8)}"
        shell = await self._spawn(SHELL.format(limits=self._limits), ["/bin/sh"], {MARK: mark})
        request = Request(shell, shell, 4096)
        shell.send(ready_text(request.key, silent=True))
        await self._ready(shell, request)
        return shell

    async def _ready(self, shell: ProcessChannel, request: Request) -> None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                report = await request.ended()
        except TimeoutError:
            await finish_despite_cancel(end(shell))
            raise SandboxDied(f"{self._name}: no shell in {READY_SECONDS:g} s") from None
        except BaseException:
            await finish_despite_cancel(end(shell))
            raise
        finally:
            request.finish()
        if report is None:
            await finish_despite_cancel(end(shell))
            output = request.result(0).stderr.decode(errors="replace").strip()
            raise SandboxDied(f"{self._name} can't run commands: {output}")

    @property
    def idle(self) -> list[int]:
        """Pids of the idle shells."""
        return [shell.pid for shell in self._idle if not shell.ended.done()]

    def drop_opening(self) -> None:
        """Kill the shell that is being opened, if there is one; others stay."""
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.add_done_callback(self._end_opened)

    def _drop(self) -> None:
        self.drop_opening()
        idle, self._idle = self._idle, []
        for shell in idle:
            self._end(shell)

    def _end(self, shell: ProcessChannel) -> None:
        shell.kill()
        task = asyncio.create_task(end(shell))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _end_opened(self, opening: asyncio.Task[ProcessChannel]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._end(opening.result())

    async def clear(self) -> None:
        """Kill all idle shells, and wait until they have exited."""
        opening = self._opening
        self._drop()
        if opening is not None:
            await asyncio.wait({opening})
        if self._ending:
            await asyncio.wait(set(self._ending))

    async def close(self) -> None:
        """Kill the idle shells, and keep none from now on."""
        self._closed = True
        await self.clear()


async def end(shell: ProcessChannel) -> None:
    """Kill a shell and everything in its namespaces, and wait until it has exited."""
    shell.kill()
    await asyncio.wait({shell.ended}, timeout=KILL_SECONDS)
    shell.close()


def _seen(opening: asyncio.Task[ProcessChannel]) -> None:
    """Retrieve the exception: the caller that takes the shell gets it, if there is one."""
    if not opening.cancelled():
        opening.exception()

"""Shells that wait for commands in an embedded sandbox, each in namespaces of its own."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._aio import see_through
from trajgym.envs.sandbox._channel import Request
from trajgym.envs.sandbox._embedded_plan import SHELL
from trajgym.envs.sandbox._errors import SandboxDied
from trajgym.envs.sandbox._protocol import FEED, MARK, ready_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trajgym.envs.sandbox._process_channel import ProcessChannel

    Spawn = Callable[[str, Sequence[str], Mapping[str, str]], Awaitable[ProcessChannel]]

__all__ = ["EmbeddedHosts", "end"]

IDLE = 2
"""Shells that are kept waiting; more are opened while more commands run at once."""
READY_SECONDS = 30.0
KILL_SECONDS = 10.0


class EmbeddedHosts:
    """The shells of one sandbox; a command after which something still runs takes its shell along.

    Args:
        name: of the sandbox, for messages.
        limits: lines of a shell that set limits.
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
        """Return a shell that nobody else uses.

        Raises:
            SandboxDied: none can be opened; the message carries what was said.
        """
        while self._idle:
            host = self._idle.pop()
            if not host.ended.done():
                return host
            self._end(host)
        opening, self._opening = self._opening, None
        if opening is None:
            return await self._open()
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._end_opened)
            raise

    def give(self, host: ProcessChannel) -> None:
        """Take back a shell that is ready for another command."""
        if self._closed or host.ended.done() or len(self._idle) >= IDLE:
            self._end(host)
        else:
            self._idle.append(host)

    async def open_feed(self, words: Sequence[str], env: Mapping[str, str]) -> ProcessChannel:
        """Start a shell for one command with much stdin; ``words`` begin with its directory.

        Raises:
            SandboxDied: as for :meth:`take`.
        """
        key = (secrets.token_hex(8), secrets.token_hex(8))
        host = await self._spawn(f"{self._limits}\n{FEED}", [*key, *words], env)
        await self._ready(host, Request(host, host, 4096, key))
        return host

    async def _open(self) -> ProcessChannel:
        mark = f"host-{secrets.token_hex(8)}"
        host = await self._spawn(SHELL.format(limits=self._limits), ["/bin/sh"], {MARK: mark})
        request = Request(host, host, 4096)
        host.send(ready_text(request.key, silent=True))
        await self._ready(host, request)
        return host

    async def _ready(self, host: ProcessChannel, request: Request) -> None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                report = await request.ended()
        except TimeoutError:
            await see_through(end(host))
            raise SandboxDied(f"{self._name}: no shell in {READY_SECONDS:g} s") from None
        except BaseException:
            await see_through(end(host))
            raise
        finally:
            request.finish()
        if report is None:
            await see_through(end(host))
            said = request.result(0).stderr.decode(errors="replace").strip()
            raise SandboxDied(f"{self._name} can't run commands: {said}")

    @property
    def idle(self) -> list[int]:
        """Pids of those that wait."""
        return [host.pid for host in self._idle if not host.ended.done()]

    def drop_opening(self) -> None:
        """End the one that is being opened, if there is one; others stay."""
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.add_done_callback(self._end_opened)

    def _drop(self) -> None:
        self.drop_opening()
        idle, self._idle = self._idle, []
        for host in idle:
            self._end(host)

    def _end(self, host: ProcessChannel) -> None:
        host.kill()
        task = asyncio.create_task(end(host))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _end_opened(self, opening: asyncio.Task[ProcessChannel]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._end(opening.result())

    async def clear(self) -> None:
        """End all that wait, and wait until they are gone."""
        opening = self._opening
        self._drop()
        if opening is not None:
            await asyncio.wait({opening})
        if self._ending:
            await asyncio.wait(set(self._ending))

    async def close(self) -> None:
        """Kill what waits, and let nothing wait any more."""
        self._closed = True
        await self.clear()


async def end(host: ProcessChannel) -> None:
    """Kill a shell and everything in its namespaces, and wait until it is gone."""
    host.kill()
    await asyncio.wait({host.ended}, timeout=KILL_SECONDS)
    host.close()


def _seen(opening: asyncio.Task[ProcessChannel]) -> None:
    """Whoever takes a shell hears why there is none; if nobody does, it is no news."""
    if not opening.cancelled():
        opening.exception()

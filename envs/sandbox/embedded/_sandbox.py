"""One embedded sandbox: its commands, shells and files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from functools import partial
from typing import TYPE_CHECKING

from trajgym.envs._threads import finish_despite_cancel
from trajgym.envs.sandbox._base import CommandResult, SandboxSpec, Snapshot
from trajgym.envs.sandbox._channel import Request
from trajgym.envs.sandbox._command import CommandSandbox, command_env, gather_or_close
from trajgym.envs.sandbox._errors import SandboxDied, SnapshotFailed
from trajgym.envs.sandbox._folders import remove_folder
from trajgym.envs.sandbox._net import visiting
from trajgym.envs.sandbox._protocol import MARK, STDIN_LIMIT, command_text
from trajgym.envs.sandbox._relay import Relay
from trajgym.envs.sandbox._routes import plan_routes
from trajgym.envs.sandbox.embedded._layers import freeze_under
from trajgym.envs.sandbox.embedded._plan import (
    SANDBOX_PATH,
    SHELL,
    Tool,
    limit_script,
    write_labels,
)
from trajgym.envs.sandbox.embedded._process_channel import ProcessChannel, spawn
from trajgym.envs.sandbox.embedded._shell import EmbeddedShellPort
from trajgym.envs.sandbox.embedded._shell_pool import ShellPool, end

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trajgym.envs.sandbox.embedded._cgroups import ControlGroup
    from trajgym.envs.sandbox.embedded._layers import SandboxFiles
    from trajgym.envs.sandbox.embedded._provider import EmbeddedProvider

__all__ = ["HOST_ENV", "LAYERS", "EmbeddedSandbox"]

HOST_ENV = {"PATH": SANDBOX_PATH, "LANG": "C.UTF-8"}
WARM_SECONDS = 0.05
LAYERS = "layers"
"""File of a snapshot with the names of its layers."""


class EmbeddedSandbox(CommandSandbox):
    """A directory, and namespaces for every command; made by :class:`EmbeddedProvider`.

    Concurrent commands have separate namespaces; namespaces without left-over processes are
    reused. Background processes end with the command that started them, or with their shell.

    Args:
        provider: the provider that started it.
        spec: the requested spec.
        files: what commands see.
        group: control groups of all commands.
        tool: creates the namespaces.
        network: descriptor of the network namespace of all commands, owned from now on.
    """

    def __init__(
        self,
        provider: EmbeddedProvider,
        spec: SandboxSpec,
        files: SandboxFiles,
        group: ControlGroup,
        tool: Tool,
        network: int | None = None,
    ) -> None:
        super().__init__()
        self.id = files.layout.folder.name
        self.spec = spec
        self._provider = provider
        self._files = files
        self._group = group
        self._tool = tool
        self._network = network
        self._relay: Relay | None = None
        self._limits = limit_script(spec.limits, group.bounds)
        self._running: set[ProcessChannel] = set()
        self._starting = 0
        self._gate = asyncio.Lock()
        self.shell_pool = ShellPool(self.id, self._limits, self._spawn)

    # Commands -----------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """See :attr:`Sandbox.alive`."""
        return not self._closed

    async def settle(self) -> None:
        """See :meth:`Sandbox.settle`."""
        await self.shell_pool.settle()

    async def _relabel(self, labels: Mapping[str, str]) -> None:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(write_labels, self._files.layout.folder, labels)

    async def open_network(self) -> None:
        """Start the relay to the endpoints that the spec allows.

        Raises:
            OSError: the kernel refused.
        """
        routes = plan_routes(self.spec.allow)
        if routes and self._network is not None:
            self._relay = Relay(self.id, routes)
            await self._relay.open(self._network)

    async def _execute(
        self,
        words: Sequence[str],
        *,
        timeout: float,
        cwd: str,
        env: Mapping[str, str],
        stdin: bytes,
        limit: int,
    ) -> CommandResult:
        variables = {**env, MARK: secrets.token_hex(12)}
        much = len(stdin) > STDIN_LIMIT
        async with self._gate:
            self._starting += 1
        try:
            taking = (
                self.shell_pool.open_feed([cwd, *words], variables)
                if much
                else self.shell_pool.take()
            )
            shell = await taking
            self._running.add(shell)
        finally:
            self._starting -= 1
        kills = self._group.oom_kills()
        request = Request(shell, shell, limit)
        if much:
            shell.send(f"{request.key[0]} {request.key[1]} {len(stdin)}\n".encode() + stdin)
        else:
            shell.send(command_text(words, cwd, variables, stdin, request.key))
        result = await self._finish(shell, request, timeout, reuse=not much)
        oom = self._group.oom_kills() > kills
        if shell.killed_from_outside and not oom:
            # Its namespaces' outermost process, which no command inside can reach.
            raise SandboxDied(f"sandbox {self.id} was killed from outside while a command ran")
        return result._replace(oom_killed=oom)

    async def _finish(
        self, shell: ProcessChannel, request: Request, timeout: float, *, reuse: bool
    ) -> CommandResult:
        async def kill() -> None:
            shell.kill()

        watch = self.watch_disk(kill)
        report, timed_out = None, False
        try:
            if self._closed:
                shell.kill()
            async with asyncio.timeout(timeout):
                report = await request.ended()
        except TimeoutError:
            timed_out = True
        finally:
            watch.stop()
            request.finish()
            reuse = reuse and report is not None and report.clean
            if not reuse:
                await finish_despite_cancel(end(shell))
            self._running.discard(shell)
        if self._closed:
            await end(shell)
            raise SandboxDied(f"sandbox {self.id} was closed while a command ran")
        if reuse:
            self.shell_pool.give(shell)
        self.shell_pool.warm()
        if timed_out:
            return request.result(-1, timed_out=True)
        code = report.status if report is not None else shell.status
        return request.result(137 if code is None else code, note=watch.note)

    async def _spawn(
        self, script: str, words: Sequence[str], env: Mapping[str, str]
    ) -> ProcessChannel:
        argv = self._tool.argv(
            self._files.layout,
            words,
            script=script,
            env={"PATH": SANDBOX_PATH, **command_env(self.spec), **env},
            entrances=self._group.entrances,
        )
        start = partial(spawn_in, self._network, argv)
        starting = asyncio.ensure_future(self._provider.mounts.call(start))
        try:
            return ProcessChannel(await asyncio.shield(starting))
        except asyncio.CancelledError:
            starting.add_done_callback(_kill_started)
            raise
        except (OSError, RuntimeError) as error:
            raise SandboxDied(f"sandbox {self.id} can't start commands: {error}") from error

    async def _disk_use(self) -> int:
        return await asyncio.to_thread(self._files.use)

    # Shells -------------------------------------------------------------------------------

    async def open_port(self, program: str, env: Mapping[str, str]) -> EmbeddedShellPort:
        async with self._gate:
            self._starting += 1
        try:
            mark = f"shell-{secrets.token_hex(8)}"
            script = SHELL.format(limits=self._limits)
            channel = await self._spawn(script, [program], {**env, MARK: mark})
            self._running.add(channel)
            port = EmbeddedShellPort(
                channel, mark, self._files.layout.folder, self._running, self._group
            )
            if self._closed:
                channel.kill()
            await port.ready()
        finally:
            self._starting -= 1
        return port

    # Files --------------------------------------------------------------------------------

    async def snapshot(self) -> Snapshot:
        """See :meth:`Sandbox.snapshot`: frozen layers, or a copy where there can be none."""
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} is closed; start another one")
        async with self._gate:
            return await finish_despite_cancel(self._snapshot())

    async def _snapshot(self) -> Snapshot:
        target = self._provider.new_folder("snapshot")
        try:
            names = await self._freeze()
            if names is not None:
                self._tidy()
                (target / LAYERS).write_text("\n".join(names))
            else:
                await self._copy(target / "files")
        except (OSError, RuntimeError) as error:
            await asyncio.to_thread(remove_folder, target)
            raise SnapshotFailed(f"can't keep the files of {self.id}: {error}") from error
        return Snapshot("embedded", target.name)

    async def _freeze(self) -> Sequence[str] | None:
        """Turn the files into layers and keep a reference; None where that is impossible."""
        layers = self._provider.layers
        waiting = {
            port.channel: shell
            for shell in self.shells.values()
            if (port := shell.idle_port) is not None
        }
        if self._starting or self._running - waiting.keys() or not layers.usable():
            return None
        async with contextlib.AsyncExitStack() as held:
            for shell in waiting.values():
                await held.enter_async_context(shell.held())
            self.shell_pool.drop_opening()
            pids = [channel.pid for channel in self._running]
            freeze = partial(freeze_under, self._files, [*pids, *self.shell_pool.idle])
            names = await self._provider.mounts.call(freeze)
            if names is None and self.shell_pool.idle:  # old kernel, or an open file
                await self.shell_pool.clear()
                names = await self._provider.mounts.call(freeze_under, self._files, pids)
            if names is not None:
                layers.hold(names)
            return names

    async def _copies(self, count: int, timeout: float) -> list[EmbeddedSandbox]:
        async with self._gate:
            try:
                names = await finish_despite_cancel(self._freeze())
            except (OSError, RuntimeError) as error:
                raise SnapshotFailed(f"can't keep the files of {self.id}: {error}") from error
        if names is None:
            return await self._copies_of_files(count, timeout)
        starts = [
            asyncio.ensure_future(self._provider.start_over(names, self.spec, timeout))
            for _ in range(count)
        ]
        try:
            copies = await gather_or_close(starts)
        finally:
            self._tidy()
            await finish_despite_cancel(asyncio.to_thread(self._provider.layers.release, names))
        for copy in copies:
            # Not while its siblings are being started: that would delay callers that wait for all.
            asyncio.get_running_loop().call_later(WARM_SECONDS, copy.shell_pool.warm)
        return copies

    def _tidy(self) -> None:
        task = asyncio.create_task(self._provider.mounts.call(self._files.tidy))
        self._tasks.add(task)
        task.add_done_callback(self._tidied)

    def _tidied(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the provider was closed before, and its mounts with it

    async def _copies_of_files(self, count: int, timeout: float) -> list[EmbeddedSandbox]:
        snapshot = await self.snapshot()
        starts = [
            asyncio.ensure_future(self._provider.restore(snapshot, self.spec, timeout=timeout))
            for _ in range(count)
        ]
        try:
            return await gather_or_close(starts)
        finally:
            await self._provider.discard(snapshot)

    async def _copy(self, target: Path) -> None:
        """Copy the files while all processes inside are frozen."""
        await asyncio.to_thread(self._group.stop)
        try:
            await self._provider.mounts.call(self._files.copy, target)
        finally:
            await asyncio.to_thread(self._group.resume)

    # End ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """See :meth:`Sandbox.close`."""
        if self._closed:
            return
        self._closed = True
        await finish_despite_cancel(self._remove())

    async def _remove(self) -> None:
        for channel in list(self._running):
            channel.kill()
        await self.shell_pool.close()
        for shell in (*self.shells.values(), *self.services.values()):
            await shell.close()
        if self._relay is not None:
            await self._relay.close()
        await asyncio.to_thread(self._group.remove)
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        with contextlib.suppress(RuntimeError):  # the provider was closed before
            await self._provider.mounts.call(self._files.unmount)
        await asyncio.to_thread(self._files.remove)
        if self._network is not None:
            os.close(self._network)
            self._network = None
        self._provider.forget(self)


def spawn_in(network: int | None, argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process in a network namespace, in the calling thread."""
    with visiting(network):
        return spawn(argv, HOST_ENV)


def _kill_started(starting: asyncio.Future[subprocess.Popen[bytes]]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        ProcessChannel(starting.result()).close()

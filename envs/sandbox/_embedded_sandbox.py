"""One embedded sandbox: its commands, shells and files."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._aio import see_through
from trajgym.envs.sandbox._base import CommandResult, SandboxSpec, Snapshot
from trajgym.envs.sandbox._command import CommandSandbox, command_env, gather_or_close
from trajgym.envs.sandbox._embedded_commands import WAIT, RunningCommand
from trajgym.envs.sandbox._embedded_files import remove_folder
from trajgym.envs.sandbox._embedded_plan import SANDBOX_PATH, SHELL, Tool, limit_script
from trajgym.envs.sandbox._embedded_shell import EmbeddedShellPort
from trajgym.envs.sandbox._errors import SandboxDied, SnapshotFailed
from trajgym.envs.sandbox._process_channel import ProcessChannel, spawn
from trajgym.envs.sandbox._protocol import MARK

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trajgym.envs.sandbox._cgroups import ControlGroup
    from trajgym.envs.sandbox._embedded import EmbeddedProvider
    from trajgym.envs.sandbox._embedded_layers import SandboxFiles

__all__ = ["HOST_ENV", "LAYERS", "EmbeddedSandbox"]

HOST_ENV = {"PATH": SANDBOX_PATH, "LANG": "C.UTF-8"}
KILL_SECONDS = 10.0
LAYERS = "layers"
"""File of a snapshot that names the layers it consists of."""


class EmbeddedSandbox(CommandSandbox):
    """A directory, and namespaces around every command; made by :class:`EmbeddedProvider`.

    Background processes end with the command that started them, or with their shell.

    Args:
        provider: who started it.
        spec: as it was asked for.
        files: what commands see.
        group: control groups of all commands.
        tool: what makes the namespaces.
    """

    def __init__(
        self,
        provider: EmbeddedProvider,
        spec: SandboxSpec,
        files: SandboxFiles,
        group: ControlGroup,
        tool: Tool,
    ) -> None:
        super().__init__()
        self.id = files.layout.folder.name
        self.spec = spec
        self._provider = provider
        self._files = files
        self._group = group
        self._tool = tool
        self._limits = limit_script(spec.limits, group.bounds)
        self._running: set[ProcessChannel] = set()
        self._spare: asyncio.Task[tuple[ProcessChannel, str]] | None = None
        self._starting = 0
        self._gate = asyncio.Lock()

    # Commands -----------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """See :attr:`Sandbox.alive`."""
        return not self._closed

    async def settle(self) -> None:
        """See :meth:`Sandbox.settle`."""
        if self._spare is not None:
            await asyncio.wait({self._spare})

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
        channel, end = await self._take_spare()
        kills = self._group.oom_kills()
        command = RunningCommand(channel, limit)
        self._running.add(channel)
        command.begin(words, cwd, env, stdin, end)
        if self._closed:
            channel.kill()

        async def kill() -> None:
            channel.kill()

        watch = self.watch_disk(kill)
        try:
            async with asyncio.timeout(timeout):
                await command.ended()
        except TimeoutError:
            command.timed_out = True
        finally:
            watch.stop()
            await see_through(_kill(channel))
            self._running.discard(channel)
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} was closed while a command ran")
        self._make_spare()
        return command.result(oom=self._group.oom_kills() > kills, note=watch.note)

    async def _take_spare(self) -> tuple[ProcessChannel, str]:
        """Return namespaces with a shell that waits for its one request."""
        async with self._gate:
            self._starting += 1
        try:
            spare, self._spare = self._spare, None
            if spare is not None:
                try:
                    ready = await asyncio.shield(spare)
                except asyncio.CancelledError:
                    spare.add_done_callback(_kill_spare)
                    raise
                if not ready[0].ended.done():
                    return ready
                ready[0].close()
            return await self._open_spare()
        finally:
            self._starting -= 1

    def _make_spare(self) -> None:
        if self._spare is None and not self._closed and not self._gate.locked():
            self._spare = asyncio.create_task(self._open_spare())
            self._spare.add_done_callback(_seen)

    async def _open_spare(self) -> tuple[ProcessChannel, str]:
        end = secrets.token_hex(16)
        return await self._spawn(WAIT.replace("{limits}", self._limits), [end], {}), end

    def _drop_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.add_done_callback(_kill_spare)

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
        starting = asyncio.ensure_future(self._provider.mounts.call(spawn, argv, HOST_ENV))
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

    async def _open_port(self, program: str, env: Mapping[str, str]) -> EmbeddedShellPort:
        async with self._gate:
            self._starting += 1
        try:
            mark = f"host-{secrets.token_hex(8)}"
            script = SHELL.format(limits=self._limits)
            channel = await self._spawn(script, [program], {**env, MARK: mark})
            self._running.add(channel)
            port = EmbeddedShellPort(channel, mark, self._files.layout.folder, self._running)
            if self._closed:
                channel.kill()
            await port.ready()
        finally:
            self._starting -= 1
        return port

    # Files --------------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """Whether nothing inside can write just now."""
        return not self._running and not self._starting

    async def snapshot(self) -> Snapshot:
        """See :meth:`Sandbox.snapshot`: frozen layers, or a copy where there can be none."""
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} is closed; start another one")
        async with self._gate:
            return await see_through(self._snapshot())

    async def _snapshot(self) -> Snapshot:
        mounts, layers = self._provider.mounts, self._provider.layers
        target = self._provider.new_folder("snapshot")
        try:
            if self.quiet and await mounts.call(layers.usable):
                self._drop_spare()
                names = await mounts.call(self._files.freeze)
                layers.hold(names)
                (target / LAYERS).write_text("\n".join(names))
            else:
                await self._copy(target / "files")
        except (OSError, RuntimeError) as error:
            await asyncio.to_thread(remove_folder, target)
            raise SnapshotFailed(f"can't keep the files of {self.id}: {error}") from error
        return Snapshot("embedded", target.name)

    async def _copies(self, count: int, timeout: float) -> list[EmbeddedSandbox]:
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
        """Copy the files while nothing inside moves."""
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
        await see_through(self._remove())

    async def _remove(self) -> None:
        for channel in list(self._running):
            channel.kill()
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.add_done_callback(_kill_spare)
            await asyncio.wait({spare})
        for shell in self.shells.values():
            await shell.close()
        await asyncio.to_thread(self._group.remove)
        with contextlib.suppress(RuntimeError):  # the provider was closed first
            await self._provider.mounts.call(self._files.unmount)
        await asyncio.to_thread(self._files.remove)
        self._provider.forget(self)


async def _kill(channel: ProcessChannel) -> None:
    """Make sure that nothing of a command is left."""
    channel.kill()
    await asyncio.wait({channel.ended}, timeout=KILL_SECONDS)
    channel.close()


def _seen(spare: asyncio.Task[tuple[ProcessChannel, str]]) -> None:
    """Whoever takes a spare hears why there is none; if nobody does, it is no news."""
    if not spare.cancelled():
        spare.exception()


def _kill_spare(spare: asyncio.Task[tuple[ProcessChannel, str]]) -> None:
    if not spare.cancelled() and spare.exception() is None:
        spare.result()[0].close()


def _kill_started(starting: asyncio.Future[subprocess.Popen[bytes]]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        ProcessChannel(starting.result()).close()

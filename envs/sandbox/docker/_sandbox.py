"""One container: its commands and shells, killing them, and snapshots of its files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from trajgym.envs._threads import finish_despite_cancel
from trajgym.envs.sandbox._base import CommandResult, SandboxSpec, Snapshot
from trajgym.envs.sandbox._channel import Request
from trajgym.envs.sandbox._command import CommandSandbox, gather_or_close
from trajgym.envs.sandbox._errors import SandboxDied, SandboxError, SnapshotFailed
from trajgym.envs.sandbox._protocol import MARK, STDIN_LIMIT, command_text
from trajgym.envs.sandbox._relay import Relay
from trajgym.envs.sandbox._routes import plan_routes
from trajgym.envs.sandbox.docker._engine import SLOW_SECONDS, translated
from trajgym.envs.sandbox.docker._errors import ContainerGone, EngineLost, EngineRefused
from trajgym.envs.sandbox.docker._fork import (
    NotCarried,
    Stage,
    apply_changes,
    staged,
)
from trajgym.envs.sandbox.docker._images import REPOSITORY, keep_image
from trajgym.envs.sandbox.docker._kill import KILL
from trajgym.envs.sandbox.docker._network import open_network_of
from trajgym.envs.sandbox.docker._shell import DockerShellPort
from trajgym.envs.sandbox.docker._shell_pool import PooledShell, ShellPool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trajgym.envs.sandbox._shell import ShellPort
    from trajgym.envs.sandbox.docker._provider import DockerProvider

__all__ = ["CLOSE_SECONDS", "DockerSandbox", "remove_container"]

_log = logging.getLogger(__name__)
KILL_SECONDS = 15.0
RESYNC_SECONDS = 2.0
CLOSE_SECONDS = 60.0
SNAPSHOT_SECONDS = 300.0
RENAME_SECONDS = 10.0
MAX_SESSION = 100
_EMPTY = 'for one; do [ -z "$(ls -A -- "$one")" ] || exit 3; done'


class DockerSandbox(CommandSandbox):
    """A running container; made by :class:`DockerProvider`.

    Args:
        provider: the provider that started it.
        spec: the requested spec.
        container: the engine's id.
        name: the container's name.
        image: what it was started from.
    """

    def __init__(
        self, provider: DockerProvider, spec: SandboxSpec, container: str, name: str, image: str
    ) -> None:
        super().__init__()
        self.id = name
        self.spec = spec
        self.container = container
        self._provider = provider
        self.engine = provider.engine
        self.image = image
        self._description: Mapping[str, Any] | None = None
        self._restarts = 0
        self._restarting = asyncio.Lock()
        self._killing = asyncio.Lock()
        self.shell_pool = ShellPool(provider.engine, spec, container, name)
        self._relay: Relay | None = None
        self._reviving: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """See :attr:`Sandbox.alive`."""
        return not self._closed and self.shell_pool.alive

    async def settle(self) -> None:
        """See :meth:`Sandbox.settle`."""
        await self.shell_pool.settle()

    async def _relabel(self, labels: Mapping[str, str]) -> None:
        session = re.sub(r"[^A-Za-z0-9_.-]", "-", labels.get("session", ""))[:MAX_SESSION]
        if not session:
            return
        try:
            name = f"{self.id}.{session}"
            await self.engine.call(
                lambda api: api.rename(self.container, name), seconds=RENAME_SECONDS
            )
        except SandboxError as error:
            _log.info("%s does not have its session's name: %s", self.id, error)

    async def open_network(self) -> None:
        """Start the relay to the endpoints that the spec allows.

        Raises:
            OSError: the container's network namespace can't be entered from here.
            SandboxDied: the container is gone.
        """
        routes = plan_routes(self.spec.allow)
        if not routes:
            return
        seen = await self.shell_pool.call(lambda api: api.inspect_container(self.container))
        namespace = await asyncio.to_thread(open_network_of, seen["State"]["Pid"], self.container)
        self._relay = Relay(self.id, routes)
        try:
            await self._relay.open(namespace)
        finally:
            os.close(namespace)

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
        mark = secrets.token_hex(12)
        variables = {**env, MARK: mark}
        if self._reviving is not None:
            await self._revived(self._reviving)
        async with self._restarting:
            restarts = self._restarts
        if len(stdin) > STDIN_LIMIT:
            shell = await self.shell_pool.open_feed([cwd, *words], variables)
            request = Request(shell.stream, shell.stream, limit)
            head = f"{request.key[0]} {request.key[1]} {len(stdin)}\n".encode()
            feeding = asyncio.create_task(shell.stream.feed(head + stdin))
        else:
            shell, feeding = await self.shell_pool.take(), None
            request = Request(shell.stream, shell.stream, limit)
            shell.stream.send(command_text(words, cwd, variables, stdin, request.key))
        try:
            return await self._finish(shell, request, mark, timeout, restarts)
        finally:
            if feeding is not None:
                shell.close()
                await asyncio.wait({feeding})

    async def _disk_use(self) -> int:
        return await self.shell_pool.call(lambda api: layer_size(api, self.container))

    async def _finish(
        self, shell: PooledShell, request: Request, mark: str, timeout: float, restarts: int
    ) -> CommandResult:
        watch = self.watch_disk(partial(self.kill_marked, mark))
        try:
            async with asyncio.timeout(timeout):
                report = await request.ended()
        except TimeoutError:
            await finish_despite_cancel(self._stop(shell, request, mark))
            return request.result(-1, timed_out=True)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):
                await finish_despite_cancel(self._stop(shell, request, mark))
            raise
        finally:
            request.finish()
            watch.stop()
        if self._closed:
            shell.close()
            raise SandboxDied(f"sandbox {self.id} was closed while a command ran")
        if report is None:
            shell.close()
            return await self._without_report(shell, request, mark, restarts)
        if report.clean:
            self.shell_pool.give(shell)
        else:
            self.shell_pool.retire(shell)
            self.shell_pool.warm()
        oom = report.oom_kills > 0
        return request.result(report.status, oom_killed=oom, note=watch.note)

    async def _stop(self, shell: PooledShell, request: Request, mark: str) -> None:
        """Kill a command; its shell is kept if it reports the end of it."""
        restarts = self._restarts
        await self.kill_marked(mark)
        if self._restarts != restarts or self._closed:
            shell.close()
            return
        report = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RESYNC_SECONDS):
                report = await request.ended()
        if report is not None and report.clean and shell.mark != mark:
            request.finish()
            self.shell_pool.give(shell)
        else:
            shell.close()
            await self.kill_marked(shell.mark)
            self.shell_pool.warm()

    async def _without_report(
        self, shell: PooledShell, request: Request, mark: str, restarts: int
    ) -> CommandResult:
        """Determine what happened to a command whose shell did not report its end."""
        code = await self.exit_code(shell.stream.exec_id)
        if self._restarts != restarts:
            return request.result(137, note="\ntrajgym: the sandbox was restarted\n")
        # Its shell was killed by the command itself or by the memory limit.
        await finish_despite_cancel(self.kill_marked(mark))
        self.shell_pool.warm()
        return request.result(code or 137)

    async def exit_code(self, exec_id: str) -> int:
        """Return the status of a shell that has exited; the container must be running.

        Raises:
            SandboxDied: it is not.
        """
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} is closed; start another one")
        async with self._restarting:
            pass
        state = await self.shell_pool.call(
            lambda api: api.inspect_container(self.container)["State"]
        )
        if not state["Running"]:
            raise SandboxDied(f"container {self.id} stopped (status {state.get('ExitCode')})")
        seen = await self.shell_pool.inspect_exec(exec_id)
        return 137 if seen["ExitCode"] is None else int(seen["ExitCode"])

    async def kill_marked(self, mark: str, spare: int = 0) -> None:
        """Kill every process of a command, as a last resort by restarting the container.

        Args:
            mark: prefix of the marks of its processes.
            spare: pid, inside, of a process that is not killed.
        """
        async with self._killing:
            if self._closed:
                return
            try:
                async with asyncio.timeout(KILL_SECONDS):
                    if (
                        await self.shell_pool.status(
                            ["/bin/sh", "-c", KILL, "sh", mark, str(spare)]
                        )
                        == 0
                    ):
                        return
            except TimeoutError:
                pass
            except SandboxDied:
                raise
            except SandboxError:
                pass  # a fork bomb can leave no process free even for the helper
            await self._restart()

    async def _restart(self) -> None:
        """Kill all processes in the container; files stay, services are started again."""
        async with self._restarting:
            self._restarts += 1
            await self.shell_pool.call(lambda api: api.restart(self.container, timeout=0))
            self.shell_pool.warm()
        if self.spec.allow or self.spec.services:
            self._reviving = asyncio.create_task(self._revive())
            self._reviving.add_done_callback(_seen)

    async def _revive(self) -> None:
        if self._relay is not None:
            await self._relay.close()
        self.services.clear()
        await self.open_network()
        await self.start_services()

    async def _revived(self, reviving: asyncio.Task[None]) -> None:
        await asyncio.wait({reviving})
        error = None if reviving.cancelled() else reviving.exception()
        if error is not None:
            raise SandboxDied(f"sandbox {self.id} was restarted and failed: {error}") from error

    async def open_port(self, program: str, env: Mapping[str, str]) -> ShellPort:
        return DockerShellPort(self, await self.shell_pool.open([program], env))

    async def description(self) -> Mapping[str, Any]:
        """Return what the engine reports of the container and does not change while it exists."""
        if self._description is not None:
            return self._description
        seen: Mapping[str, Any] = await self.shell_pool.call(
            lambda api: api.inspect_container(self.container)
        )
        self._description = seen
        return seen

    async def _refuse_volumes(self) -> None:
        """Check that no volume has content, which the files of a container do not include.

        Raises:
            SnapshotFailed: one has.
        """
        mounts = (await self.description()).get("Mounts") or ()
        volumes = [str(one["Destination"]) for one in mounts if one.get("Type") == "volume"]
        if volumes and await self.shell_pool.status(["/bin/sh", "-c", _EMPTY, "sh", *volumes]) != 0:
            raise SnapshotFailed(
                f"{self.id}: image {self.image!r} declares volumes ({', '.join(volumes)}), and a "
                "copy would not have what lies there; keep the files in another directory, or use "
                "an image without VOLUME"
            )

    async def _copies(self, count: int, timeout: float) -> list[DockerSandbox]:
        """Copy the changes to other containers of the image; if that fails, commit an image."""
        if self.spec.readonly_root:
            await self.snapshot()  # raises the reason
        await self._refuse_volumes()
        try:
            async with staged(self) as stage:
                ready = self._provider.ready_like(self, count)
                stage.expect(starts=count - len(ready), packs=bool(ready))
                works = [self._fill(box, stage) for box in ready]
                start = partial(self._provider.start_like, self, stage, timeout)
                works += [start() for _ in range(count - len(ready))]
                return await gather_or_close([asyncio.ensure_future(work) for work in works])
        except NotCarried as reason:
            _log.info("%s is forked by a commit: %s", self.id, reason)
        snapshot = await self.snapshot()
        restore = self._provider.restore
        try:
            return await gather_or_close(
                [
                    asyncio.ensure_future(restore(snapshot, self.spec, timeout=timeout))
                    for _ in range(count)
                ]
            )
        finally:
            await self._provider.discard(snapshot)

    async def _fill(self, made: DockerSandbox, stage: Stage) -> DockerSandbox:
        try:
            await apply_changes(made, await asyncio.to_thread(stage.changes))
        except BaseException:
            await made.close()
            raise
        return made

    def clear_later(self, folder: Path) -> None:
        """Remove a directory of the host in the background, as a task of the provider."""
        self._provider.clear_later(folder)

    async def snapshot(self) -> Snapshot:
        """See :meth:`Sandbox.snapshot`: an image with this container's files."""
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} is closed; start another one")
        if self.spec.readonly_root:
            raise SnapshotFailed(
                f"{self.id}: with a read-only root everything writable lies in memory and can't "
                "be kept; start it without readonly_root to fork it"
            )
        await self._refuse_volumes()
        tag = secrets.token_hex(8)

        def commit(api: Any) -> None:
            keep_image(api, self.container, tag)

        try:
            async with self.shell_pool.gate.shut():
                await self.engine.call(commit, seconds=SNAPSHOT_SECONDS, patience=SLOW_SECONDS)
        except EngineRefused as error:
            raise SnapshotFailed(f"the engine can't commit {self.id}: {error}") from error
        except (ContainerGone, EngineLost) as error:
            raise self.shell_pool.died(error) from error
        return Snapshot("docker", f"{REPOSITORY}:{tag}")

    async def close(self) -> None:
        """See :meth:`Sandbox.close`."""
        if self._closed:
            return
        self._closed = True
        await finish_despite_cancel(self._remove())

    async def _remove(self) -> None:
        self.shell_pool.close()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._reviving is not None:
            self._reviving.cancel()
            await asyncio.wait({self._reviving})
        if self._relay is not None:
            await self._relay.close()
        try:
            await self.engine.call(
                lambda api: remove_container(self.container, api), seconds=CLOSE_SECONDS
            )
        except SandboxError as error:
            # Closing the provider tries again; the reaper removes it once this process has ended.
            _log.warning("container %s may still be there: %s", self.id, error)
        finally:
            await self._provider.forget(self)


def _seen(reviving: asyncio.Task[None]) -> None:
    """Retrieve the exception: the next command, if there is one, reports the fault."""
    if not reviving.cancelled():
        reviving.exception()


def remove_container(name: str, api: Any) -> None:
    """Remove a container with its volumes if it exists. Blocks."""
    with contextlib.suppress(ContainerGone):
        translated(lambda: api.remove_container(name, v=True, force=True))


def layer_size(api: Any, container: str) -> int:
    """Return the bytes that a container has written to its layer. Blocks."""
    url = api._url("/containers/{0}/json", container)
    seen = api._result(api._get(url, params={"size": 1}), json=True)
    return int(seen.get("SizeRw") or 0)

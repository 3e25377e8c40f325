"""Sandboxes that are Docker containers."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from trajgym.envs.sandbox import _docker_engine as engine_module
from trajgym.envs.sandbox._aio import see_through
from trajgym.envs.sandbox._base import CommandResult, SandboxProvider, SandboxSpec, Snapshot
from trajgym.envs.sandbox._command import CommandSandbox, check_spec
from trajgym.envs.sandbox._docker_engine import (
    SLOW_SECONDS,
    ContainerGone,
    DockerEngine,
    EngineLost,
    EngineRefused,
    ExecStream,
)
from trajgym.envs.sandbox._docker_exec import WRAPPER, CommandEnd, CommandStreams
from trajgym.envs.sandbox._docker_kill import KILL, MARK
from trajgym.envs.sandbox._docker_start import Launch, user_of
from trajgym.envs.sandbox._errors import (
    SandboxDied,
    SandboxError,
    SandboxStartFailed,
    SandboxUnavailable,
    SnapshotFailed,
)
from trajgym.envs.sandbox._owner import is_dead, own_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["DockerProvider", "DockerSandbox"]

T = TypeVar("T")
OURS = "trajgym"
OWNER = "trajgym.owner"
PROVIDER = "trajgym.provider"
KIND = "trajgym.kind"
REPOSITORY = "trajgym/snapshot"
CHECK_SECONDS = 10
KILL_SECONDS = 15.0
CLOSE_SECONDS = 60.0
SNAPSHOT_SECONDS = 300.0


class DockerSandbox(CommandSandbox):
    """A running container; made by :class:`DockerProvider`.

    Args:
        provider: who started it.
        spec: as it was asked for.
        container: the engine's id.
        name: the container's name.
    """

    def __init__(
        self, provider: DockerProvider, spec: SandboxSpec, container: str, name: str
    ) -> None:
        self.id = name
        self.spec = spec
        self.container = container
        self._provider = provider
        self._engine = provider.engine
        self._restarts = 0
        self._restarting = asyncio.Lock()
        self._killing = asyncio.Lock()

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
        argv = ["/bin/sh", "-c", WRAPPER, "sh", cwd, *words]
        async with self._restarting:
            restarts = self._restarts
        exec_id = await self._create_exec(argv, {**env, MARK: mark}, stdin=True)
        streams = CommandStreams(limit)
        try:
            async with asyncio.timeout(timeout):
                end = await self._follow(exec_id, streams, stdin)
        except TimeoutError:
            await see_through(self._kill(mark))
            return streams.result(-1, timed_out=True)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):
                await see_through(self._kill(mark))
            raise
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} was closed while a command ran")
        if end is not None:
            return streams.result(end.exit_code, oom_killed=end.oom_killed)
        return await self._without_word(exec_id, mark, streams, restarts)

    async def _follow(
        self, exec_id: str, streams: CommandStreams, stdin: bytes
    ) -> CommandEnd | None:
        async def running() -> bool:
            return bool((await self._alive(lambda api: api.exec_inspect(exec_id)))["Running"])

        stream = await self._attach(exec_id)
        try:
            return await streams.follow(stream, stdin, running)
        finally:
            stream.close()

    async def _without_word(
        self, exec_id: str, mark: str, streams: CommandStreams, restarts: int
    ) -> CommandResult:
        """Find out what happened to a command whose wrapper did not report the end."""
        async with self._restarting:
            pass
        state = await self._alive(lambda api: api.inspect_container(self.container)["State"])
        if not state["Running"]:
            raise SandboxDied(f"container {self.id} stopped (status {state.get('ExitCode')})")
        if self._restarts != restarts:
            return streams.result(137, note="\ntrajgym: the sandbox was restarted\n")
        seen = await self._alive(lambda api: api.exec_inspect(exec_id))
        # Its wrapper was killed by the command itself or for want of memory.
        await see_through(self._kill(mark))
        return streams.result(seen["ExitCode"] if seen["ExitCode"] is not None else 137)

    async def _alive(self, work: Callable[[Any], T]) -> T:
        """Call the engine about this container, which must be there."""
        try:
            return await self._engine.call(work)
        except EngineRefused as error:
            raise SandboxError(f"the engine refused ({self.id}): {error}") from error
        except (ContainerGone, EngineLost) as error:
            raise self._died(error) from error

    def _died(self, error: Exception) -> SandboxDied:
        return SandboxDied(f"sandbox {self.id} is gone: {error}")

    async def _create_exec(
        self, argv: Sequence[str], env: Mapping[str, str], *, stdin: bool = False
    ) -> str:
        made = await self._alive(
            lambda api: api.exec_create(
                self.container,
                list(argv),
                stdin=stdin,
                user=user_of(self.spec),
                environment=dict(env),
            )
        )
        return str(made["Id"])

    async def _attach(self, exec_id: str) -> ExecStream:
        try:
            return await self._engine.open_exec(exec_id)
        except EngineRefused as error:
            raise SandboxError(f"the engine refused ({self.id}): {error}") from error
        except (ContainerGone, EngineLost) as error:
            raise self._died(error) from error

    async def _kill(self, mark: str) -> None:
        """End every process of a command, at worst by restarting the container."""
        async with self._killing:
            if self._closed:
                return
            try:
                async with asyncio.timeout(KILL_SECONDS):
                    if await self._status(["/bin/sh", "-c", KILL, "sh", mark]) == 0:
                        return
            except TimeoutError:
                pass
            except SandboxDied:
                raise
            except SandboxError:
                pass  # a fork bomb can leave no room even for the helper
            await self._restart()

    async def _status(self, argv: Sequence[str]) -> int | None:
        """Run a helper to its end and return its exit status."""
        exec_id = await self._create_exec(argv, {})
        stream = await self._attach(exec_id)
        try:
            while await stream.receive() is not None:
                pass
        finally:
            stream.close()
        seen = await self._alive(lambda api: api.exec_inspect(exec_id))
        status = seen["ExitCode"]
        return None if status is None else int(status)

    async def _restart(self) -> None:
        """Kill everything in the container; files stay."""
        async with self._restarting:
            self._restarts += 1
            await self._alive(lambda api: api.restart(self.container, timeout=0))

    async def snapshot(self) -> Snapshot:
        """See :meth:`Sandbox.snapshot`: an image with this container's files."""
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} is closed; start another one")
        tag = secrets.token_hex(8)

        def commit(api: Any) -> str:
            image = api.commit(
                self.container,
                repository=REPOSITORY,
                tag=tag,
                changes=[f"LABEL {KIND}=snapshot"],
            )
            return str(image["Id"])

        try:
            await self._engine.call(commit, seconds=SNAPSHOT_SECONDS, patience=SLOW_SECONDS)
        except EngineRefused as error:
            raise SnapshotFailed(f"the engine can't commit {self.id}: {error}") from error
        except (ContainerGone, EngineLost) as error:
            raise self._died(error) from error
        return Snapshot("docker", f"{REPOSITORY}:{tag}")

    async def close(self) -> None:
        """See :meth:`Sandbox.close`."""
        if self._closed:
            return
        self._closed = True
        await see_through(self._remove())

    async def _remove(self) -> None:
        try:
            await self._engine.call(
                partial(_remove_container, self.container), seconds=CLOSE_SECONDS
            )
        except SandboxError:
            return  # the engine is gone, or will be found again by the reaper
        finally:
            self._provider.forget(self)


class DockerProvider(SandboxProvider):
    """Starts containers on a Docker engine, without network, privileges or the engine's socket.

    Args:
        host: as in ``DOCKER_HOST`` (``unix://`` or plain ``tcp://``); None takes that, or the
            local socket.
        pull: whether a missing image is pulled; if not, it is an error at once.
    """

    name = "docker"

    def __init__(self, host: str | None = None, *, pull: bool = False) -> None:
        self.engine = DockerEngine(host)
        self._pull = pull
        self._id = secrets.token_hex(8)
        self._open: dict[str, DockerSandbox] = {}
        self._launches: set[asyncio.Future[str]] = set()
        self._closed = False
        self._used = False

    async def check(self) -> None:
        """See :meth:`SandboxProvider.check`."""
        try:
            info = await self.engine.call(
                lambda api: api.info(), seconds=CHECK_SECONDS, patience=CHECK_SECONDS
            )
        except SandboxUnavailable:
            raise
        except SandboxError as error:
            raise engine_module.unavailable(self.engine.host, error) from error
        if info.get("OSType") != "linux":
            raise SandboxUnavailable(
                f"the engine at {self.engine.host} runs {info.get('OSType')} containers; "
                "switch it to Linux containers"
            )

    async def start(self, spec: SandboxSpec, *, timeout: float = 120.0) -> DockerSandbox:
        """See :meth:`SandboxProvider.start`; waiting for one of the few start slots counts."""
        check_spec(spec)
        return await self._launch(spec, spec.image, timeout, fresh=True)

    async def restore(
        self, snapshot: Snapshot, spec: SandboxSpec, *, timeout: float = 120.0
    ) -> DockerSandbox:
        """See :meth:`SandboxProvider.restore`; the spec's image, trees and readonly are skipped."""
        check_spec(spec)
        self._refuse_if_closed()
        try:
            await self.engine.call(lambda api: api.inspect_image(snapshot.id))
        except ContainerGone as error:
            raise SnapshotFailed(f"there is no snapshot {snapshot.id} on this engine") from error
        except SandboxError as error:
            raise engine_module.unavailable(self.engine.host, error) from error
        return await self._launch(spec, snapshot.id, timeout, fresh=False)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise SandboxUnavailable("this provider is closed; make another one")

    async def _launch(
        self, spec: SandboxSpec, image: str, timeout: float, *, fresh: bool
    ) -> DockerSandbox:
        self._refuse_if_closed()
        self._used = True
        name = f"trajgym-{secrets.token_hex(8)}"
        labels = {**spec.labels, **self._labels("sandbox")}
        launch = Launch(self.engine, spec, name, image, labels, fresh, self._pull)
        future = self.engine.submit_start(launch)
        self._launches.add(future)
        future.add_done_callback(self._launches.discard)
        try:
            async with asyncio.timeout(timeout):
                container = await asyncio.shield(future)
        except BaseException as error:
            launch.abandoned.set()
            future.add_done_callback(partial(self._undo, name))
            if isinstance(error, TimeoutError | EngineLost | EngineRefused | ContainerGone):
                raise self._start_error(error, timeout) from error
            raise
        sandbox = DockerSandbox(self, spec, container, name)
        self._open[name] = sandbox
        return sandbox

    def _start_error(self, error: Exception, timeout: float) -> SandboxError:
        if isinstance(error, TimeoutError):
            return SandboxStartFailed(f"the sandbox did not start within {timeout:g} s")
        if isinstance(error, EngineLost):
            return engine_module.unavailable(self.engine.host, error)
        return SandboxStartFailed(f"the engine refused to start the sandbox: {error}")

    def _undo(self, name: str, future: asyncio.Future[str]) -> None:
        """Remove a container that came up just when its start was given up."""
        if future.cancelled() or future.exception() is not None:
            return

        def remove() -> None:
            with contextlib.suppress(SandboxError):
                _remove_container(name, self.engine.client())

        with contextlib.suppress(RuntimeError):  # shut down: closing removed it already
            self.engine.submit_start(remove)

    def _labels(self, kind: str) -> dict[str, str]:
        return {OURS: "1", OWNER: own_token(), PROVIDER: self._id, KIND: kind}

    def forget(self, sandbox: DockerSandbox) -> None:
        """Drop a sandbox that was closed from the books."""
        self._open.pop(sandbox.id, None)

    async def discard(self, snapshot: Snapshot) -> None:
        """See :meth:`SandboxProvider.discard`."""
        with contextlib.suppress(SandboxError):
            await self.engine.call(partial(_remove_image, snapshot.id), patience=SLOW_SECONDS)

    async def reap(self) -> int:
        """See :meth:`SandboxProvider.reap`; snapshots of dead processes go too."""
        try:
            return await self.engine.call(
                partial(_remove_where, f"{OURS}=1", _owner_is_dead),
                seconds=600.0,
                patience=SLOW_SECONDS,
            )
        except SandboxError as error:
            raise engine_module.unavailable(self.engine.host, error) from error

    async def close(self) -> None:
        """See :meth:`SandboxProvider.close`."""
        if self._closed:
            return
        self._closed = True
        await see_through(self._close())

    async def _close(self) -> None:
        if self._launches:
            await asyncio.wait(set(self._launches), timeout=CLOSE_SECONDS)
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open.values())))
        # Nothing was made if nothing was started: then even an engine that hangs costs no time.
        if self._used:
            with contextlib.suppress(SandboxError):
                await self.engine.call(
                    partial(_remove_where, f"{PROVIDER}={self._id}", lambda _labels: True),
                    seconds=CLOSE_SECONDS,
                )
        self.engine.shutdown()

    def isolation(self) -> dict[str, str]:
        """See :meth:`SandboxProvider.isolation`."""
        return {
            "kernel": "shared with the host; seccomp filters system calls (the engine's default)",
            "privileges": "no capabilities, no new privileges; commands run as uid 1000",
            "processes": "own pid namespace; count, memory and processors limited by cgroups",
            "files": "own file system from an image; nothing of the host is mounted",
            "disk": "one file can't outgrow the limit, the sum of files is NOT bounded",
            "network": "none, unless the spec asks for it: then everything the host can reach",
            "engine": "its socket is never mounted",
        }


def _owner_is_dead(labels: Mapping[str, str]) -> bool:
    return is_dead(labels.get(OWNER, ""))


def _remove_container(name: str, api: Any) -> None:
    with contextlib.suppress(ContainerGone):
        engine_module.translated(lambda: api.remove_container(name, v=True, force=True))


def _remove_image(name: str, api: Any) -> None:
    with contextlib.suppress(ContainerGone):
        engine_module.translated(lambda: api.remove_image(name, force=True))


def _remove_where(label: str, doomed: Callable[[Mapping[str, str]], bool], api: Any) -> int:
    """Remove containers and snapshot images with a label; return how many containers."""
    containers = api.containers(all=True, filters={"label": label})
    count = 0
    for container in containers:
        if doomed(container.get("Labels") or {}):
            _remove_container(container["Id"], api)
            count += 1
    images = api.images(filters={"label": [label, f"{KIND}=snapshot"]})
    # The newest first: an image that others were made from can't go before them.
    for image in sorted(images, key=lambda image: -image["Created"]):
        if doomed(image.get("Labels") or {}):
            _remove_image(image["Id"], api)
    return count

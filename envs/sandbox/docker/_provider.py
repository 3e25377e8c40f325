"""Sandboxes that are Docker containers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from trajgym.envs._threads import finish_despite_cancel
from trajgym.envs._waits import waiting
from trajgym.envs.sandbox._base import BASE_IMAGE, SandboxProvider, SandboxSpec, Snapshot
from trajgym.envs.sandbox._command import check_spec
from trajgym.envs.sandbox._errors import (
    SandboxError,
    SandboxStartFailed,
    SandboxUnavailable,
    SnapshotFailed,
)
from trajgym.envs.sandbox._folders import remove_folder
from trajgym.envs.sandbox._owner import is_dead, own_token
from trajgym.envs.sandbox.docker import _engine as engine_module
from trajgym.envs.sandbox.docker._engine import SLOW_SECONDS, DockerEngine
from trajgym.envs.sandbox.docker._errors import ContainerGone, EngineLost, EngineRefused
from trajgym.envs.sandbox.docker._images import KIND, REPOSITORY
from trajgym.envs.sandbox.docker._network import network_refusal
from trajgym.envs.sandbox.docker._sandbox import (
    CLOSE_SECONDS,
    DockerSandbox,
    remove_container,
)
from trajgym.envs.sandbox.docker._start import Launch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trajgym.envs.sandbox._base import Sandbox
    from trajgym.envs.sandbox.docker._fork import Stage

__all__ = ["DockerProvider"]

_log = logging.getLogger(__name__)
OURS = "trajgym"
OWNER = "trajgym.owner"
PROVIDER = "trajgym.provider"
CHECK_SECONDS = 10


class DockerProvider(SandboxProvider):
    """Starts containers on a Docker engine, without network, privileges or the engine's socket.

    Args:
        host: as in ``DOCKER_HOST`` (``unix://`` or plain ``tcp://``); None takes that, or the
            local socket.
        pull: whether to pull a missing image; if False, a missing image is an error.
        runtime: runtime of containers, like ``runsc`` (gVisor); the engine must have it.
    """

    name = "docker"

    def __init__(
        self, host: str | None = None, *, pull: bool = False, runtime: str | None = None
    ) -> None:
        self.engine = DockerEngine(host, runtime)
        self._pull = pull
        self._id = secrets.token_hex(8)
        self._open: dict[str, DockerSandbox] = {}
        self._discarded: set[str] = set()
        self._take_ready: Callable[[SandboxSpec], Sandbox | None] | None = None
        self._launches: set[asyncio.Future[str]] = set()
        self._clearing: set[asyncio.Task[None]] = set()
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

        runtime = self.engine.runtime
        if runtime is not None and runtime not in (info.get("Runtimes") or {}):
            raise SandboxUnavailable(
                f"the engine at {self.engine.host} has no runtime {runtime!r}: install it and name "
                "it in the engine's daemon.json (runtimes), or omit runtime="
            )

    async def start(self, spec: SandboxSpec, *, timeout: float = 120.0) -> DockerSandbox:
        """See :meth:`SandboxProvider.start`; waiting for one of the few start slots counts."""
        check_spec(spec)
        with waiting("sandbox"):
            made = await self._launch(spec, spec.image or BASE_IMAGE, timeout, fresh=True)
            return await self._served(made)

    async def restore(
        self, snapshot: Snapshot, spec: SandboxSpec, *, timeout: float = 120.0
    ) -> DockerSandbox:
        """See :meth:`SandboxProvider.restore`; the spec's image, trees and readonly are skipped."""
        check_spec(spec)
        self._refuse_if_closed()
        if snapshot.id in self._discarded:
            raise SnapshotFailed(f"snapshot {snapshot.id} was discarded")
        try:
            await self.engine.call(lambda api: api.inspect_image(snapshot.id))
        except ContainerGone as error:
            raise SnapshotFailed(f"there is no snapshot {snapshot.id} on this engine") from error
        except SandboxError as error:
            raise engine_module.unavailable(self.engine.host, error) from error
        with waiting("sandbox"):
            return await self._served(await self._launch(spec, snapshot.id, timeout))

    def use_ready(self, take: Callable[[SandboxSpec], Sandbox | None]) -> None:
        """See :meth:`SandboxProvider.use_ready`."""
        self._take_ready = take

    def ready_like(self, sandbox: DockerSandbox, count: int) -> list[DockerSandbox]:
        """Return up to ``count`` started sandboxes of the same image."""
        found: list[DockerSandbox] = []
        usable = sandbox.image == (sandbox.spec.image or BASE_IMAGE) and not sandbox.spec.services
        while usable and self._take_ready is not None and len(found) < count:
            taken = self._take_ready(sandbox.spec)
            if not isinstance(taken, DockerSandbox):
                break
            found.append(taken)
        return found

    def clear_later(self, folder: Path) -> None:
        """Remove a directory of this host in the background; closing waits for it."""
        clearing = asyncio.create_task(asyncio.to_thread(remove_folder, folder))
        self._clearing.add(clearing)
        clearing.add_done_callback(self._clearing.discard)

    async def start_like(
        self, sandbox: DockerSandbox, stage: Stage, timeout: float
    ) -> DockerSandbox:
        """Start a sandbox from the same image with another one's files, its services left out.

        Raises:
            NotCarried: the files can't be made its layer.
            SandboxStartFailed, SandboxUnavailable: as for :meth:`start`.
        """
        with waiting("sandbox"):
            return await self._launch(sandbox.spec, sandbox.image, timeout, stage=stage)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise SandboxUnavailable("this provider is closed; make another one")

    async def _launch(
        self,
        spec: SandboxSpec,
        image: str,
        timeout: float,
        *,
        fresh: bool = False,
        stage: Stage | None = None,
    ) -> DockerSandbox:
        self._refuse_if_closed()
        if spec.allow and (refusal := network_refusal(self.engine)):
            raise SandboxUnavailable(f"allow={list(spec.allow)} is not supported: {refusal}")
        self._used = True
        name = f"trajgym-{secrets.token_hex(8)}"
        labels = {**spec.labels, **self._labels("sandbox")}
        launch = Launch(self.engine, spec, name, image, labels, fresh, stage, self._pull)
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
        sandbox = DockerSandbox(self, spec, container, name, image)
        self._open[name] = sandbox
        sandbox.shell_pool.warm()
        try:
            await sandbox.open_network()
        except BaseException as error:
            await sandbox.close()
            if isinstance(error, OSError):
                raise SandboxStartFailed(f"no way out for the places allowed: {error}") from error
            raise
        return sandbox

    async def _served(self, sandbox: DockerSandbox) -> DockerSandbox:
        try:
            await sandbox.start_services()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def _start_error(self, error: Exception, timeout: float) -> SandboxError:
        if isinstance(error, TimeoutError):
            return SandboxStartFailed(f"the sandbox did not start within {timeout:g} s")
        if isinstance(error, EngineLost):
            return engine_module.unavailable(self.engine.host, error)
        return SandboxStartFailed(f"the engine refused to start the sandbox: {error}")

    def _undo(self, name: str, future: asyncio.Future[str]) -> None:
        """Remove a container that started while its start was being abandoned."""
        if future.cancelled() or future.exception() is not None:
            return

        def remove() -> None:
            try:
                remove_container(name, self.engine.client())
            except SandboxError as error:
                _log.warning("container %s may still be there: %s", name, error)

        with contextlib.suppress(RuntimeError):  # shut down: closing removed it already
            self.engine.submit_start(remove)

    def _labels(self, kind: str) -> dict[str, str]:
        return {OURS: "1", OWNER: own_token(), PROVIDER: self._id, KIND: kind}

    async def forget(self, sandbox: DockerSandbox) -> None:
        """Forget a sandbox that was closed, and remove an image that it was the last to use."""
        self._open.pop(sandbox.id, None)
        if sandbox.image in self._discarded:
            await self.discard(Snapshot("docker", sandbox.image))

    async def discard(self, snapshot: Snapshot) -> None:
        """See :meth:`SandboxProvider.discard`; the image goes with the last sandbox of it.

        Raises:
            SnapshotFailed: it names an image that is no snapshot.
        """
        if not snapshot.id.startswith(f"{REPOSITORY}:"):
            raise SnapshotFailed(f"{snapshot.id!r} is not a snapshot of a container; it is kept")
        if any(sandbox.image == snapshot.id for sandbox in self._open.values()):
            self._discarded.add(snapshot.id)
            return
        self._discarded.discard(snapshot.id)
        try:
            await self.engine.call(partial(_remove_image, snapshot.id), patience=SLOW_SECONDS)
        except SandboxError as error:
            _log.warning("image %s may still be there: %s", snapshot.id, error)

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
        await finish_despite_cancel(self._close())

    async def _close(self) -> None:
        if self._launches:
            await asyncio.wait(set(self._launches), timeout=CLOSE_SECONDS)
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open.values())))
        # If nothing was started, nothing has to be removed: don't wait for an engine that hangs.
        if self._used:
            try:
                await self.engine.call(
                    partial(_remove_where, f"{PROVIDER}={self._id}", lambda _labels: True),
                    seconds=CLOSE_SECONDS,
                )
            except SandboxError as error:
                _log.warning("containers or images may still be there: %s", error)
        if self._clearing:
            await asyncio.wait(set(self._clearing))
        self.engine.shutdown()

    def isolation(self) -> dict[str, str]:
        """See :meth:`SandboxProvider.isolation`."""
        return {
            "kernel": "shared with the host; seccomp filters system calls (the engine's default)",
            "privileges": "no capabilities but those of the spec, no new privileges; commands run "
            "as uid 1000 by default",
            "processes": "own pid namespace; count, memory and processors limited by cgroups",
            "files": "own file system from an image; nothing of the host is mounted",
            "disk": "measured every second while a command runs; no single file can exceed it; "
            "with a read-only root it is a hard bound",
            "network": "none but an own loopback; by `allow` the places it names, over TCP; by "
            "`network` everything the host can reach",
            "engine": "its socket is never mounted",
        }


def _owner_is_dead(labels: Mapping[str, str]) -> bool:
    return is_dead(labels.get(OWNER, ""))


def _remove_image(name: str, api: Any) -> None:
    with contextlib.suppress(ContainerGone):
        engine_module.translated(lambda: api.remove_image(name, force=True))


def _remove_where(label: str, doomed: Callable[[Mapping[str, str]], bool], api: Any) -> int:
    """Remove containers and snapshot images with a label; return how many containers."""
    containers = api.containers(all=True, filters={"label": label})
    count = 0
    for container in containers:
        if doomed(container.get("Labels") or {}):
            remove_container(container["Id"], api)
            count += 1
    images = api.images(filters={"label": [label, f"{KIND}=snapshot"]})
    # The newest first: an image can't be removed before those made from it.
    for image in sorted(images, key=lambda image: -image["Created"]):
        if doomed(image.get("Labels") or {}):
            _remove_image(image["Id"], api)
    return count

"""Sandboxes made of this host's kernel features, for hosts without a container engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from trajgym.envs._threads import finish_despite_cancel
from trajgym.envs._waits import waiting
from trajgym.envs.sandbox._base import SandboxProvider, SandboxSpec, Snapshot
from trajgym.envs.sandbox._command import check_spec
from trajgym.envs.sandbox._errors import (
    SandboxStartFailed,
    SandboxUnavailable,
    SnapshotFailed,
)
from trajgym.envs.sandbox._folders import remove_folder
from trajgym.envs.sandbox._gate import Gate
from trajgym.envs.sandbox._net import new_namespace
from trajgym.envs.sandbox._owner import is_dead, own_token
from trajgym.envs.sandbox._state_dir import default_root, own_folder
from trajgym.envs.sandbox.embedded._cgroups import ControlGroup, ControlGroups
from trajgym.envs.sandbox.embedded._files import Files
from trajgym.envs.sandbox.embedded._layers import Layers, SandboxFiles
from trajgym.envs.sandbox.embedded._mounts import MountThread
from trajgym.envs.sandbox.embedded._plan import SHELL, Tool, describe, find_tools, limit_script
from trajgym.envs.sandbox.embedded._sandbox import HOST_ENV, LAYERS, EmbeddedSandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["NO_NETWORKS", "EmbeddedProvider"]

PROBE_SECONDS = 30.0
NO_NETWORKS = (
    "a network namespace that several commands share needs root; run as root, or use Docker"
)
FIX = (
    "install bubblewrap and allow user namespaces (sysctl user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0), "
    "run as root, or use Docker; inside a container start it with --privileged"
)


@dataclass(slots=True)
class _Parts:
    """What a start has created so far, to be undone if it fails or is cancelled."""

    files: SandboxFiles | None = None
    group: ControlGroup = field(default_factory=ControlGroup)
    network: int | None = None


class EmbeddedProvider(SandboxProvider):
    """Starts sandboxes from namespaces of this host, without daemon or image, in milliseconds.

    Commands see the host's ``/usr`` read-only and the spec's trees, nothing else of the host.

    Args:
        root: directory of the sandboxes' files; None takes ``TRAJGYM_SANDBOX_DIR`` or a directory
            of this user's under the system's temporary one.
        tool: ``bubblewrap`` or ``unshare``; None takes the first that works.
    """

    name = "embedded"

    def __init__(self, root: Path | None = None, *, tool: str | None = None) -> None:
        self.root = root or default_root()
        self._wanted = tool
        self._tool: Tool | None = None
        self._groups = ControlGroups()
        self.mounts = MountThread()
        self.layers = Layers(self.root / f"{own_token()}-layers", self.mounts)
        self._bounds: frozenset[str] = frozenset()
        self._open: dict[str, EmbeddedSandbox] = {}
        self._snapshots: set[str] = set()
        self._closed = False
        self._gate = Gate()

    @property
    def tool(self) -> str:
        """Program that creates the namespaces; empty before :meth:`check`."""
        return "" if self._tool is None else self._tool.name

    async def check(self) -> None:
        """See :meth:`SandboxProvider.check`."""
        if self._closed:
            raise SandboxUnavailable("this provider is closed; make another one")
        if self._tool is None:
            self._tool = await self.mounts.call(self._probe)
            await self.mounts.call(self.layers.usable)

    def _probe(self) -> Tool:
        """Return the first tool that can start a command here."""
        own_folder(self.root)
        tools = [tool for tool in find_tools() if self._wanted in {None, tool.name}]
        reasons = [] if tools else ["neither bwrap nor unshare is installed"]
        for tool in tools:
            refusal = self._try(tool)
            if not refusal:
                return tool
            reasons.append(f"{tool.name}: {refusal}")
        raise SandboxUnavailable(f"no namespaces can be made here ({'; '.join(reasons)}): {FIX}")

    def _try(self, tool: Tool) -> str:
        """Start a command; return why that failed, or an empty string."""
        spec = SandboxSpec()
        folder = self.new_folder("probe")
        group = self._groups.create(folder.name, spec.limits)
        try:
            layout = Files(folder, spec, tool.default_user, own=tool.root).plain()
            argv = tool.argv(
                layout,
                ["true"],
                script=SHELL.format(limits=limit_script(spec.limits, group.bounds)),
                env=HOST_ENV,
                entrances=group.entrances,
            )
            done = subprocess.run(
                argv,
                env=HOST_ENV,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROBE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        finally:
            _discard(group, folder)
        if done.returncode == 0:
            self._bounds = group.bounds
            return ""
        return done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"

    def new_folder(self, kind: str) -> Path:
        """Create a directory whose name contains its purpose and its process."""
        folder = self.root / f"{own_token()}-{kind}-{secrets.token_hex(6)}"
        folder.mkdir(mode=0o700)
        if kind == "snapshot":
            self._snapshots.add(folder.name)
        return folder

    async def start(self, spec: SandboxSpec, *, timeout: float = 120.0) -> EmbeddedSandbox:
        """See :meth:`SandboxProvider.start`."""
        with waiting("sandbox"):
            return await self._served(await self._launch(spec, timeout))

    async def restore(
        self, snapshot: Snapshot, spec: SandboxSpec, *, timeout: float = 120.0
    ) -> EmbeddedSandbox:
        """See :meth:`SandboxProvider.restore`; the spec's trees are skipped."""
        source = self._snapshot_folder(snapshot)
        names = self._layers_of(source)
        if names is None and not (source / "files").is_dir():
            raise SnapshotFailed(f"there is no snapshot {snapshot.id} in {self.root}")
        with waiting("sandbox"):
            return await self._served(await self._launch(spec, timeout, source / "files", names))

    async def _served(self, sandbox: EmbeddedSandbox) -> EmbeddedSandbox:
        try:
            await sandbox.start_services()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def start_over(
        self, names: Sequence[str], spec: SandboxSpec, timeout: float
    ) -> EmbeddedSandbox:
        """Start a sandbox whose files start as these layers; the caller keeps a reference to them.

        Raises:
            SandboxStartFailed, SandboxUnavailable: as for :meth:`start`.
        """
        with waiting("sandbox"):
            return await self._launch(spec, timeout, names=names)

    def _layers_of(self, source: Path) -> list[str] | None:
        """Return the layers of a snapshot; None if it is a copy, or does not exist."""
        try:
            names = (source / LAYERS).read_text().split()
        except OSError:
            return None
        if not self.layers.have(names):
            raise SnapshotFailed(f"snapshot {source.name} belongs to another process: its layers")
        return names

    def _snapshot_folder(self, snapshot: Snapshot) -> Path:
        if "/" in snapshot.id or "-snapshot-" not in snapshot.id:
            raise SnapshotFailed(f"{snapshot.id!r} is not a snapshot of an embedded sandbox")
        return self.root / snapshot.id

    async def _launch(
        self,
        spec: SandboxSpec,
        timeout: float,
        source: Path | None = None,
        names: Sequence[str] | None = None,
    ) -> EmbeddedSandbox:
        check_spec(spec)
        await self.check()
        async with self._gate.passing():
            if self._closed:
                raise SandboxUnavailable("this provider is closed; make another one")
            return await self._launch_now(spec, timeout, source, names)

    async def _launch_now(
        self,
        spec: SandboxSpec,
        timeout: float,
        source: Path | None,
        names: Sequence[str] | None,
    ) -> EmbeddedSandbox:
        assert self._tool is not None
        user = self._user(spec, self._tool)
        joined = self._tool.root and not spec.network
        if (spec.allow or spec.services) and not (joined or spec.network):
            raise SandboxUnavailable(f"allow and services are not supported: {NO_NETWORKS}")
        folder = self.new_folder("sandbox")
        files = Files(folder, spec, user, own=self._tool.root, joined=joined)
        parts = _Parts()
        sandbox: EmbeddedSandbox | None = None
        try:
            async with asyncio.timeout(timeout):
                # Threads can't be cancelled: wait for the copy, then check the deadline.
                if names is not None:
                    over = partial(SandboxFiles.over, files, self.layers, names)
                    await finish_despite_cancel(self.mounts.call(self._prepare, parts, files, over))
                else:
                    plain = partial(self._plain, files, source)
                    work = asyncio.to_thread(self._prepare, parts, files, plain)
                    await finish_despite_cancel(work)
                assert parts.files is not None
                network, parts.network = parts.network, None
                sandbox = EmbeddedSandbox(self, spec, parts.files, parts.group, self._tool, network)
                self._open[sandbox.id] = sandbox
                await sandbox.open_network()
                if source is None and names is None:
                    await self._first_command(sandbox)
        except BaseException as error:
            # Once there is a sandbox, it has shells, a relay and the network besides its parts.
            undoing = self._undo(parts, folder) if sandbox is None else sandbox.close()
            await finish_despite_cancel(undoing)
            if isinstance(error, TimeoutError):
                raise SandboxStartFailed(f"no start within {timeout:g} s") from error
            if isinstance(error, OSError | subprocess.SubprocessError | RuntimeError):
                raise SandboxStartFailed(f"can't prepare the sandbox: {error}") from error
            raise
        return sandbox

    def _prepare(self, parts: _Parts, files: Files, make: Callable[[], SandboxFiles]) -> None:
        if files.joined:
            parts.network = new_namespace()
        parts.files = make()
        parts.group = self._groups.create(files.folder.name, files.spec.limits)

    def _plain(self, files: Files, source: Path | None) -> SandboxFiles:
        return SandboxFiles(files, self.layers, files.plain(source))

    async def _undo(self, parts: _Parts, folder: Path) -> None:
        await asyncio.to_thread(parts.group.remove)
        if parts.network is not None:
            os.close(parts.network)
        if parts.files is not None:
            await self.mounts.call(parts.files.unmount)
            await asyncio.to_thread(parts.files.remove)
        await asyncio.to_thread(remove_folder, folder)

    def _user(self, spec: SandboxSpec, tool: Tool) -> tuple[int, int]:
        if spec.capabilities:
            raise SandboxStartFailed("an embedded sandbox has no capabilities: use Docker")
        if spec.user is None:
            return tool.default_user
        uid, gid = map(int, spec.user.split(":"))
        if tool.root and 0 in {uid, gid}:
            raise SandboxStartFailed(
                "user 0 in an embedded sandbox would be the host's root: name another or use Docker"
            )
        if not tool.root and tool.name == "unshare" and (uid, gid) != (0, 0):
            raise SandboxStartFailed("without bubblewrap or root only user 0:0 is supported")
        return uid, gid

    async def _first_command(self, sandbox: EmbeddedSandbox) -> None:
        result = await sandbox.run(["true"], timeout=30.0)
        if not result.ok:
            output = result.stderr.decode(errors="replace").strip()
            raise SandboxStartFailed(f"the sandbox can't run commands: {output}")

    def forget(self, sandbox: EmbeddedSandbox) -> None:
        """Forget a sandbox that was closed."""
        self._open.pop(sandbox.id, None)

    async def discard(self, snapshot: Snapshot) -> None:
        """See :meth:`SandboxProvider.discard`."""
        folder = self._snapshot_folder(snapshot)
        await finish_despite_cancel(asyncio.to_thread(self._discard, folder))

    def _discard(self, folder: Path) -> None:
        with contextlib.suppress(SnapshotFailed):
            self.layers.release(self._layers_of(folder) or ())
        remove_folder(folder)
        self._snapshots.discard(folder.name)

    async def reap(self) -> int:
        """See :meth:`SandboxProvider.reap`; snapshots of dead processes go too."""
        return await finish_despite_cancel(asyncio.to_thread(self._reap))

    def _reap(self) -> int:
        self._groups.reap()
        count = 0
        if not self.root.is_dir():
            return 0
        for folder in self.root.iterdir():
            token, _, rest = folder.name.partition("-")
            if rest and is_dead(token):
                remove_folder(folder)
                count += rest.startswith("sandbox-")
        return count

    async def close(self) -> None:
        """See :meth:`SandboxProvider.close`."""
        if self._closed:
            return
        self._closed = True
        await finish_despite_cancel(self._close())

    async def _close(self) -> None:
        async with self._gate.shut():  # starts that have begun end by themselves
            await asyncio.gather(*(sandbox.close() for sandbox in list(self._open.values())))
        for name in list(self._snapshots):
            await asyncio.to_thread(self._discard, self.root / name)
        self.mounts.close()
        await asyncio.to_thread(remove_folder, self.layers.folder)

    def isolation(self) -> dict[str, str]:
        """See :meth:`SandboxProvider.isolation`; complete once :meth:`check` has run."""
        return describe(self._bounds)


def _discard(group: ControlGroup, folder: Path) -> None:
    group.remove()
    remove_folder(folder)

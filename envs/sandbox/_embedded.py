"""Sandboxes made of this host's kernel features, for hosts without a container engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._aio import see_through
from trajgym.envs.sandbox._base import CommandResult, SandboxProvider, SandboxSpec, Snapshot
from trajgym.envs.sandbox._capture import Capture
from trajgym.envs.sandbox._cgroups import ControlGroup, ControlGroups
from trajgym.envs.sandbox._command import CommandSandbox, check_spec, command_env
from trajgym.envs.sandbox._embedded_files import (
    Files,
    copy_folder,
    disk_use,
    remove_folder,
)
from trajgym.envs.sandbox._embedded_plan import (
    SANDBOX_PATH,
    Layout,
    Tool,
    describe,
    find_tools,
    inner_script,
)
from trajgym.envs.sandbox._errors import (
    SandboxDied,
    SandboxStartFailed,
    SandboxUnavailable,
    SnapshotFailed,
)
from trajgym.envs.sandbox._owner import is_dead, own_token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["EmbeddedProvider", "EmbeddedSandbox"]

HOST_ENV = {"PATH": SANDBOX_PATH, "LANG": "C.UTF-8"}
KILL_SECONDS = 10.0
PROBE_SECONDS = 10.0
WATCH_SECONDS = 0.5
SLACK = 1 << 20
FIX = (
    "install bubblewrap and allow user namespaces (sysctl user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0), "
    "run as root, or use Docker; inside a container start it with --privileged"
)


class EmbeddedSandbox(CommandSandbox):
    """A directory, and namespaces around every command; made by :class:`EmbeddedProvider`.

    Background processes end with the command that started them.

    Args:
        provider: who started it.
        spec: as it was asked for.
        layout: what commands see.
        group: control groups of all commands.
        tool: what makes the namespaces.
    """

    def __init__(
        self,
        provider: EmbeddedProvider,
        spec: SandboxSpec,
        layout: Layout,
        group: ControlGroup,
        tool: Tool,
    ) -> None:
        self.id = layout.folder.name
        self.spec = spec
        self._provider = provider
        self._layout = layout
        self._group = group
        self._tool = tool
        self._script = inner_script(spec.limits, group.bounds)
        self._running: set[asyncio.subprocess.Process] = set()

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
        argv = self._tool.argv(
            self._layout,
            words,
            script=self._script,
            cwd=cwd,
            env={"PATH": SANDBOX_PATH, **command_env(self.spec), **env},
            entrances=self._group.entrances,
        )
        begun, kills = time.monotonic(), self._group.oom_kills()
        command = _Running(await self._spawn(argv), limit, stdin)
        self._running.add(command.process)
        if self._closed:
            command.process.kill()
        watch = asyncio.create_task(self._watch_disk(command))
        try:
            async with asyncio.timeout(timeout):
                await command.ended()
        except TimeoutError:
            command.timed_out = True
        finally:
            watch.cancel()
            await see_through(command.kill())
            self._running.discard(command.process)
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} was closed while a command ran")
        return command.result(time.monotonic() - begun, oom=self._group.oom_kills() > kills)

    async def _spawn(self, argv: Sequence[str]) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *(word.encode(errors="replace") for word in argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=HOST_ENV,
                cwd="/",
                start_new_session=True,
                limit=1 << 18,
            )
        except OSError as error:
            raise SandboxDied(f"sandbox {self.id} can't start commands: {error}") from error

    async def _watch_disk(self, command: _Running) -> None:
        """Kill the command when the sandbox's files outgrow their limit.

        Where they did so before, the command may still remove some: only growth is punished then.
        """
        allowed = 0
        while True:
            begun = time.monotonic()
            used = await asyncio.to_thread(disk_use, self._layout.folder / "files")
            allowed = allowed or max(self.spec.limits.disk, used + SLACK)
            if used > allowed:
                command.note = (
                    f"\ntrajgym: killed: the sandbox's files take {used} bytes, "
                    f"more than its disk limit of {self.spec.limits.disk}\n"
                )
                command.process.kill()
                return
            # Looking through many files must not become the main load.
            await asyncio.sleep(max(WATCH_SECONDS, 10 * (time.monotonic() - begun)))

    async def snapshot(self) -> Snapshot:
        """See :meth:`Sandbox.snapshot`: a copy of the sandbox's directory."""
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} is closed; start another one")
        target = self._provider.new_folder("snapshot")
        try:
            await see_through(
                asyncio.to_thread(copy_folder, self._layout.folder / "files", target / "files")
            )
        except BaseException as error:
            await see_through(asyncio.to_thread(remove_folder, target))
            if isinstance(error, OSError | subprocess.SubprocessError):
                raise SnapshotFailed(f"can't copy the files of {self.id}: {error}") from error
            raise
        return Snapshot("embedded", target.name)

    async def close(self) -> None:
        """See :meth:`Sandbox.close`."""
        if self._closed:
            return
        self._closed = True
        await see_through(self._remove())

    async def _remove(self) -> None:
        for process in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.to_thread(self._group.remove)
        await asyncio.to_thread(remove_folder, self._layout.folder)
        self._provider.forget(self)


class _Running:
    """One command while it runs.

    Args:
        process: the outermost process; when it dies the whole pid namespace does.
        limit: bytes kept of each stream.
        stdin: what it reads.
    """

    def __init__(self, process: asyncio.subprocess.Process, limit: int, stdin: bytes) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.timed_out = False
        self.note = ""
        self._out = Capture(limit)
        self._err = Capture(limit)
        self._feeding = asyncio.create_task(self._feed(stdin))
        # The exit is only seen once both streams were read to their ends, after a kill too.
        self._ending = {
            asyncio.create_task(self._read(process.stdout, self._out)),
            asyncio.create_task(self._read(process.stderr, self._err)),
            asyncio.create_task(process.wait()),
        }

    async def ended(self) -> None:
        """Wait for the exit and the ends of both streams."""
        await asyncio.wait(self._ending)

    async def _feed(self, stdin: bytes) -> None:
        pipe = self.process.stdin
        assert pipe is not None
        with contextlib.suppress(OSError):
            for at in range(0, len(stdin), 1 << 18):
                pipe.write(stdin[at : at + (1 << 18)])
                await pipe.drain()
        pipe.close()
        with contextlib.suppress(OSError):
            await pipe.wait_closed()

    async def _read(self, stream: asyncio.StreamReader, capture: Capture) -> None:
        while data := await stream.read(1 << 18):
            capture.feed(data)

    async def kill(self) -> None:
        """Make sure that nothing of it is left."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        tasks = {self._feeding, *self._ending}
        await asyncio.wait(tasks, timeout=KILL_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    def result(self, seconds: float, *, oom: bool) -> CommandResult:
        status = self.process.returncode
        code = 137 if status is None else 128 - status if status < 0 else status
        stdout, dropped_stdout = self._out.result()
        stderr, dropped_stderr = self._err.result()
        return CommandResult(
            -1 if self.timed_out else code,
            stdout,
            stderr + self.note.encode(),
            timed_out=self.timed_out,
            oom_killed=oom,
            dropped_stdout=dropped_stdout,
            dropped_stderr=dropped_stderr,
            seconds=seconds,
        )


def _default_root() -> Path:
    given = os.environ.get("TRAJGYM_SANDBOX_DIR")
    return Path(given or Path(tempfile.gettempdir()) / f"trajgym-sandboxes-{os.geteuid()}")


class EmbeddedProvider(SandboxProvider):
    """Starts sandboxes from namespaces of this host: no daemon, no image, milliseconds.

    Commands see the host's ``/usr`` read-only and the spec's trees, nothing else of the host.

    Args:
        root: where sandboxes keep their files; None takes ``TRAJGYM_SANDBOX_DIR`` or a directory
            of this user's under the system's temporary one.
        tool: ``bubblewrap`` or ``unshare``; None takes the first that works.
    """

    name = "embedded"

    def __init__(self, root: Path | None = None, *, tool: str | None = None) -> None:
        self._root = root or _default_root()
        self._wanted = tool
        self._tool: Tool | None = None
        self._groups = ControlGroups()
        self._bounds: frozenset[str] = frozenset()
        self._open: dict[str, EmbeddedSandbox] = {}
        self._snapshots: set[str] = set()
        self._closed = False

    async def check(self) -> None:
        """See :meth:`SandboxProvider.check`."""
        if self._closed:
            raise SandboxUnavailable("this provider is closed; make another one")
        if self._tool is None:
            self._tool = await asyncio.to_thread(self._probe)

    def _probe(self) -> Tool:
        """Return the first tool that can start a command here."""
        self._prepare_root()
        tools = [tool for tool in find_tools() if self._wanted in {None, tool.name}]
        reasons = [] if tools else ["neither bwrap nor unshare is installed"]
        for tool in tools:
            refusal = self._try(tool)
            if not refusal:
                return tool
            reasons.append(f"{tool.name}: {refusal}")
        raise SandboxUnavailable(f"no namespaces can be made here ({'; '.join(reasons)}): {FIX}")

    def _try(self, tool: Tool) -> str:
        """Start a command; return why that fails, or nothing."""
        spec = SandboxSpec()
        folder = self.new_folder("probe")
        group = self._groups.create(folder.name, spec.limits)
        try:
            layout = Files(folder, spec, tool.default_user, own=tool.root).layout()
            argv = tool.argv(
                layout,
                ["true"],
                script=inner_script(spec.limits, group.bounds),
                cwd="/",
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

    def _prepare_root(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = self._root.lstat()
        if self._root.is_symlink() or status.st_uid != os.geteuid():
            raise SandboxUnavailable(
                f"{self._root} belongs to somebody else; set TRAJGYM_SANDBOX_DIR to another place"
            )

    def new_folder(self, kind: str) -> Path:
        """Make a directory whose name says what it is and to which process it belongs."""
        folder = self._root / f"{own_token()}-{kind}-{secrets.token_hex(6)}"
        folder.mkdir(mode=0o700)
        if kind == "snapshot":
            self._snapshots.add(folder.name)
        return folder

    async def start(self, spec: SandboxSpec, *, timeout: float = 120.0) -> EmbeddedSandbox:
        """See :meth:`SandboxProvider.start`."""
        return await self._launch(spec, None, timeout)

    async def restore(
        self, snapshot: Snapshot, spec: SandboxSpec, *, timeout: float = 120.0
    ) -> EmbeddedSandbox:
        """See :meth:`SandboxProvider.restore`; the spec's trees are skipped."""
        source = self._snapshot_folder(snapshot)
        if not source.is_dir():
            raise SnapshotFailed(f"there is no snapshot {snapshot.id} in {self._root}")
        return await self._launch(spec, source / "files", timeout)

    def _snapshot_folder(self, snapshot: Snapshot) -> Path:
        if "/" in snapshot.id or "-snapshot-" not in snapshot.id:
            raise SnapshotFailed(f"{snapshot.id!r} is no snapshot of an embedded sandbox")
        return self._root / snapshot.id

    async def _launch(
        self, spec: SandboxSpec, source: Path | None, timeout: float
    ) -> EmbeddedSandbox:
        check_spec(spec)
        await self.check()
        assert self._tool is not None
        user = self._user(spec, self._tool)
        folder = self.new_folder("sandbox")
        group = ControlGroup()
        try:
            async with asyncio.timeout(timeout):
                files = Files(folder, spec, user, own=self._tool.root)
                # Threads can't be cancelled: see the copy through, then look at the clock.
                layout = await see_through(asyncio.to_thread(files.layout, source))
                group = await asyncio.to_thread(self._groups.create, folder.name, spec.limits)
                sandbox = EmbeddedSandbox(self, spec, layout, group, self._tool)
                self._open[sandbox.id] = sandbox
                await self._first_command(sandbox)
        except BaseException as error:
            self._open.pop(folder.name, None)
            await see_through(asyncio.to_thread(_discard, group, folder))
            if isinstance(error, TimeoutError):
                raise SandboxStartFailed(f"no start within {timeout:g} s") from error
            if isinstance(error, OSError | subprocess.SubprocessError):
                raise SandboxStartFailed(f"can't prepare the sandbox's files: {error}") from error
            raise
        return sandbox

    def _user(self, spec: SandboxSpec, tool: Tool) -> tuple[int, int]:
        if spec.user is None:
            return tool.default_user
        uid, gid = map(int, spec.user.split(":"))
        if tool.root and 0 in {uid, gid}:
            raise SandboxStartFailed(
                "user 0 in an embedded sandbox would be the host's root: name another or use Docker"
            )
        if not tool.root and tool.name == "unshare" and (uid, gid) != (0, 0):
            raise SandboxStartFailed("without bubblewrap or root only user 0:0 can be offered")
        return uid, gid

    async def _first_command(self, sandbox: EmbeddedSandbox) -> None:
        result = await sandbox.run(["true"], timeout=30.0)
        if not result.ok:
            said = result.stderr.decode(errors="replace").strip()
            raise SandboxStartFailed(f"the sandbox can't run commands: {said}")

    def forget(self, sandbox: EmbeddedSandbox) -> None:
        """Drop a sandbox that was closed from the books."""
        self._open.pop(sandbox.id, None)

    async def discard(self, snapshot: Snapshot) -> None:
        """See :meth:`SandboxProvider.discard`."""
        folder = self._snapshot_folder(snapshot)
        await see_through(asyncio.to_thread(remove_folder, folder))
        self._snapshots.discard(snapshot.id)

    async def reap(self) -> int:
        """See :meth:`SandboxProvider.reap`; snapshots of dead processes go too."""
        return await see_through(asyncio.to_thread(self._reap))

    def _reap(self) -> int:
        self._groups.reap()
        count = 0
        if not self._root.is_dir():
            return 0
        for folder in self._root.iterdir():
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
        await see_through(self._close())

    async def _close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open.values())))
        for name in list(self._snapshots):
            await asyncio.to_thread(remove_folder, self._root / name)
        self._snapshots.clear()

    def isolation(self) -> dict[str, str]:
        """See :meth:`SandboxProvider.isolation`; complete once :meth:`check` has run."""
        return describe(self._bounds)


def _discard(group: ControlGroup, folder: Path) -> None:
    group.remove()
    remove_folder(folder)

"""The interface between environments and the place where untrusted code runs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

from trajgym.trajectory import AsyncClosing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trajgym.envs.sandbox._shell import Shell
    from trajgym.envs.sandbox._stream import Stream
    from trajgym.envs.sandbox._trees import FileEntry

__all__ = [
    "CommandResult",
    "Limits",
    "Sandbox",
    "SandboxProvider",
    "SandboxSpec",
    "Service",
    "Snapshot",
]

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one sandbox may use.

    Args:
        memory: bytes of memory, no swap; a command that needs more is killed (`oom_killed`).
        cpus: share of processors.
        pids: processes and threads at once.
        disk: bytes that may be written, where the provider can bound it.
        output: bytes kept per output stream of a command: the head and the tail, the middle is
            dropped and counted while reading, so memory stays bounded.
    """

    memory: int = 1024 * MIB
    cpus: float = 1.0
    pids: int = 256
    disk: int = 2048 * MIB
    output: int = 1 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A program that runs as long as its sandbox does, as the sandbox's user.

    Args:
        name: to find it by.
        command: a shell line that goes on running.
        ready: a shell line that succeeds once the service can be used; it is tried again and
            again. Nothing is waited for if empty.
        seconds: deadline of that.
    """

    name: str
    command: str
    ready: str = ""
    seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What to start.

    Args:
        image: name of a container image. Providers without images ignore it.
        trees: directories copied in at start, ``{absolute path inside: directory on the host}``;
            the agent may change its copy. Providers with images skip the paths that the label
            ``trajgym.holds`` of ``image`` names (colon-separated).
        readonly: directories shown read-only, same form (interpreters, wheels).
        workdir: where commands run unless told otherwise; created if missing.
        env: environment variables of every command.
        user: ``uid:gid`` of commands; None is the provider's unprivileged default.
        network: whether the outside can be reached. Off unless a task needs it.
        allow: the only places that can be reached while ``network`` is off, each ``host:port``,
            or ``host:port=target:port`` where the host of the sandbox knows it by another name
            or port. Inside, the names stand in ``/etc/hosts``; nothing else resolves or has a
            route. TCP only. A name may lead to public addresses only, unless its target is given.
        services: programs that are started before :meth:`SandboxProvider.start` returns, and
            again in a fork; they end with the sandbox.
        readonly_root: whether only ``workdir``, the home directory and ``/tmp`` can be written.
            In Docker these then lie in memory, count as such, and can't be forked or kept; the
            embedded sandbox's root is never writable.
        limits: see :class:`Limits`.
        labels: put on everything the provider creates, to find it again (run, session).
    """

    image: str = ""
    trees: Mapping[str, Path] = field(default_factory=dict)
    readonly: Mapping[str, Path] = field(default_factory=dict)
    workdir: str = "/work"
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    network: bool = False
    allow: Sequence[str] = ()
    services: Sequence[Service] = ()
    readonly_root: bool = False
    limits: Limits = Limits()
    labels: Mapping[str, str] = field(default_factory=dict)


class CommandResult(NamedTuple):
    """What a command did. Output is bytes; decode with ``errors="replace"`` at the edge."""

    exit_code: int
    """Exit status; 128 + signal if a signal ended it; -1 if it timed out."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    """The timeout expired; the whole process tree was killed and the sandbox is usable."""
    oom_killed: bool = False
    """The memory limit killed a process of this command."""
    dropped_stdout: int = 0
    """Bytes of stdout that were read but not kept (from the middle)."""
    dropped_stderr: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True if the command ended by itself with status 0."""
        return self.exit_code == 0 and not self.timed_out


class Snapshot(NamedTuple):
    """The file state of a sandbox at one moment; processes and tmpfs are not part of it."""

    provider: str
    id: str


class Sandbox(AsyncClosing):
    """One place where untrusted code runs.

    Commands are independent: each gets a fresh shell (``/bin/sh -c``); files persist, shell
    variables don't. Several commands may run at once. Every method has a deadline of its own and
    is safe to cancel: a cancelled command's process tree is killed.
    """

    id: str
    spec: SandboxSpec
    shells: dict[str, Shell]
    """Shells that are open, by name."""
    services: dict[str, Shell]
    """Shells that hold the spec's services, by name; what a service says is late output."""
    lost: tuple[str, ...]
    """What a fork did not take along, in words; empty for a sandbox that is no fork."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """False once it was closed, or is known to be gone; asks nobody."""

    def assign(self, spec: SandboxSpec) -> None:
        """Note for whom it is used from now on: a spec that differs in its labels only."""
        self.spec = spec

    @abstractmethod
    async def settle(self) -> None:
        """Wait until the first command will find everything ready."""

    @abstractmethod
    async def shell(
        self,
        name: str = "",
        *,
        program: str = "/bin/sh",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Shell:
        """Open a shell that keeps directory, variables and background processes.

        Args:
            name: to find it in a fork; numbered by default.
            program: any POSIX shell that is there inside.
            cwd: where it begins; the spec's ``workdir`` if None.
            env: variables added to the spec's.

        Raises:
            InvalidInput: a shell of this name is open, or a variable has no proper name.
            SandboxError: there is no such program inside.
            SandboxDied: the sandbox is gone.
        """

    @abstractmethod
    async def stream(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        limit: int = 64 * MIB,
    ) -> Stream:
        """Start a program that goes on running and speaks in lines over stdin and stdout.

        It sees no end of its stdin before the stream is closed. Forks and snapshots leave it out.

        Args:
            command: an argument vector. A program that can't be started has ended at once.
            cwd: directory inside the sandbox; the spec's ``workdir`` if None.
            env: variables added to the spec's.
            limit: bytes of output that may wait to be read.

        Raises:
            InvalidInput: the vector is empty, or a variable has no proper name.
            SandboxError: the program did not begin in time.
            SandboxDied: the sandbox is gone.
        """

    @abstractmethod
    async def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> CommandResult:
        """Run a command to its end, its timeout, or its death.

        Args:
            command: a shell line, or an argument vector that no shell touches.
            timeout: seconds until the whole process tree is killed; must be positive.
            cwd: directory inside the sandbox; the spec's ``workdir`` if None.
            env: variables added to the spec's.
            stdin: bytes the command can read; it sees end of file after them.

        Raises:
            SandboxDied: the sandbox is gone.
        """

    @abstractmethod
    async def read_file(self, path: str, *, limit: int = 16 * MIB) -> bytes:
        """Return the content of a regular file inside the sandbox.

        Raises:
            SandboxFileError: missing, not a regular file, or larger than ``limit`` bytes.
            SandboxDied: the sandbox is gone.
        """

    @abstractmethod
    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file inside the sandbox, as the sandbox's user; parents are created.

        Links are resolved inside the sandbox: nothing on the host is ever written.

        Raises:
            SandboxFileError: not permitted, a directory, or the disk is full.
            SandboxDied: the sandbox is gone.
        """

    @abstractmethod
    async def list_files(self, path: str = ".") -> list[FileEntry]:
        """List a directory inside, sorted by name, without what lies below.

        Raises:
            SandboxFileError: missing, not a directory, or too many entries.
            SandboxDied: the sandbox is gone.
        """

    @abstractmethod
    async def upload(self, source: Path, path: str, *, limit: int = 256 * MIB) -> None:
        """Copy a directory of the host into the sandbox, as the sandbox's user.

        Files that are there stay unless the copy brings the same names. Links stay links, and are
        followed inside only. Needs ``tar`` inside.

        Raises:
            SandboxFileError: not a directory, larger than ``limit`` bytes, or not permitted.
            SandboxDied: the sandbox is gone.
        """

    @abstractmethod
    async def download(self, path: str, target: Path, *, limit: int = 256 * MIB) -> list[str]:
        """Copy a directory inside to a new directory on the host. Needs ``tar`` inside.

        Returns:
            What was left out, as ``path: reason``: links that lead out of it, devices, sockets.

        Raises:
            SandboxFileError: missing, larger than ``limit`` bytes, or ``target`` is there already.
            SandboxDied: the sandbox is gone.
        """

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """Keep the file state of this moment; see :meth:`SandboxProvider.restore`.

        Raises:
            SnapshotFailed: the state could not be kept.
            SandboxDied: the sandbox is gone.
        """

    @abstractmethod
    async def forks(self, count: int, *, timeout: float = 120.0) -> list[Self]:
        """Make independent copies of this sandbox as it is now.

        Files come along, and every shell with its directory and environment, by its name in
        ``shells``. Processes, ``/dev/shm`` and shell variables that are not exported don't:
        :attr:`lost` of the copy names what there was. This sandbox goes on untouched.

        Args:
            count: how many; one look at the files serves all.
            timeout: seconds until all have to be there.

        Raises:
            SnapshotFailed: the files could not be copied, whole, as they were.
            SandboxStartFailed: a copy did not come up; none is left then.
            SandboxDied: the sandbox is gone.
        """

    async def fork(self, *, timeout: float = 120.0) -> Self:
        """Make one copy; see :meth:`forks`."""
        return (await self.forks(1, timeout=timeout))[0]

    @abstractmethod
    async def close(self) -> None:
        """Kill everything in it and free it. Idempotent, also for a sandbox that is gone."""


class SandboxProvider(AsyncClosing):
    """Starts sandboxes of one kind. One instance serves many sessions at once."""

    name: str
    """``docker`` or ``embedded``; recorded with every session."""

    @abstractmethod
    async def check(self) -> None:
        """Find out whether sandboxes can be started here.

        Raises:
            SandboxUnavailable: with the reason and what to do about it.
        """

    @abstractmethod
    async def start(self, spec: SandboxSpec, *, timeout: float = 120.0) -> Sandbox:
        """Start a sandbox.

        Raises:
            ImageNotFound: the image is not here.
            SandboxStartFailed: the engine refused, ``timeout`` seconds passed, or a service was
                not ready in time.
            SandboxUnavailable: no engine answers, or ``allow`` can't be promised here.
        """

    @abstractmethod
    async def restore(
        self, snapshot: Snapshot, spec: SandboxSpec, *, timeout: float = 120.0
    ) -> Sandbox:
        """Start a new sandbox with the file state of a snapshot.

        Raises:
            SnapshotFailed: the snapshot is not there.
            SandboxStartFailed: as for :meth:`start`.
        """

    @abstractmethod
    async def discard(self, snapshot: Snapshot) -> None:
        """Free a snapshot. Idempotent."""

    @abstractmethod
    async def reap(self) -> int:
        """Remove what killed processes left behind, and nothing else; return how many sandboxes.

        A sandbox is left behind when the process that started it (recorded in its labels with
        pid, start time and host boot) no longer lives.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close every sandbox and snapshot that this provider made. Idempotent."""

    @abstractmethod
    def isolation(self) -> dict[str, str]:
        """Say what is isolated and what is not, as ``{aspect: sentence}``, for people to read."""

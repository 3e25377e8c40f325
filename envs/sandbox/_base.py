"""The interface of sandboxes: where untrusted code runs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

from trajgym.trajectory._internal import AsyncClosing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from trajgym.envs.sandbox._shell import Shell
    from trajgym.envs.sandbox._stream import Stream
    from trajgym.envs.sandbox._trees import FileEntry

__all__ = [
    "BASE_IMAGE",
    "CommandResult",
    "Limits",
    "Sandbox",
    "SandboxProvider",
    "SandboxSpec",
    "Service",
    "Snapshot",
]

MIB = 1 << 20
BASE_IMAGE = "trajgym/base:bookworm"
"""Debian bookworm with python3, git and patch: the default image of containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one sandbox may use.

    Args:
        memory: bytes of memory, no swap; a command that needs more is killed (`oom_killed`).
        cpus: processors that it may use, as a number that need not be whole.
        pids: maximum number of processes and threads.
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
    """A program that runs as the sandbox's user for as long as the sandbox exists.

    Args:
        name: its key in :attr:`Sandbox.services`.
        command: a shell line that keeps running.
        ready: a shell line that succeeds once the service can be used; it is repeated until it
            does. If empty, the service counts as ready immediately.
        seconds: deadline for the service to become ready.
    """

    name: str
    command: str
    ready: str = ""
    seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """Specification of a sandbox.

    Args:
        image: name of a container image; empty takes `BASE_IMAGE`, which ``trajgym sandboxes
            prepare`` makes. Providers without images ignore it.
        trees: directories copied in at start, ``{absolute path inside: directory on the host}``;
            the agent may change its copy. Providers with images skip the paths that the label
            ``trajgym.holds`` of ``image`` names (colon-separated).
        readonly: directories of the host mounted read-only, in the same form (interpreters,
            wheels).
        mounts: directories of the host, in the same form, that are never copied: read-only, large,
            and needed at once. Docker's engine must be on this host.
        workdir: where commands run by default; created if missing.
        env: environment variables of every command.
        user: ``uid:gid`` of commands; None is the provider's unprivileged default.
        capabilities: Linux capabilities that a root user keeps, such as ``CHOWN``; none by default.
            Docker only.
        network: whether the sandbox has network access; off by default.
        allow: the only endpoints that can be reached while ``network`` is off, each ``host:port``,
            or ``host:port=target:port`` where the host connects to another name or port. Inside,
            the names are in ``/etc/hosts``; nothing else resolves or has a route. TCP only. A
            name may resolve to public addresses only, unless its target is given.
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
    mounts: Mapping[str, Path] = field(default_factory=dict)
    workdir: str = "/work"
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    capabilities: Sequence[str] = ()
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

    @property
    def text(self) -> str:
        """Standard output, then standard error, with U+FFFD for what is not UTF-8."""
        return (self.stdout + self.stderr).decode(errors="replace")


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
    """Open shells, by name."""
    services: dict[str, Shell]
    """Shells that run the spec's services, by name; a service's output is their late output."""
    lost: tuple[str, ...]
    """Descriptions of what a fork could not copy; empty for a sandbox that is not a fork."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """False once it is closed or known to be gone; does not contact the engine."""

    def assign(self, spec: SandboxSpec) -> None:
        """Replace the spec by one that differs in its labels only."""
        self.spec = spec

    @abstractmethod
    async def settle(self) -> None:
        """Wait until commands can run without delay."""

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
            name: key in :attr:`shells`, here and in forks; a number by default.
            program: any POSIX shell that is installed inside.
            cwd: its first working directory; the spec's ``workdir`` if None.
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
        """Start a long-running program that exchanges lines over stdin and stdout.

        Its stdin stays open until the stream is closed. Forks and snapshots do not include it.

        Args:
            command: an argument vector. If the program can't be started, the stream ends.
            cwd: directory inside the sandbox; the spec's ``workdir`` if None.
            env: variables added to the spec's.
            limit: bytes of output that may wait to be read.

        Raises:
            InvalidInput: the vector is empty, or a variable has no proper name.
            SandboxError: the program did not start in time.
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
        """Run a command until it exits, is killed, or times out.

        Args:
            command: a shell line, or an argument vector that is run without a shell.
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
        """List the entries of a directory inside, sorted by name; not recursive.

        Raises:
            SandboxFileError: missing, not a directory, or too many entries.
            SandboxDied: the sandbox is gone.
        """

    @abstractmethod
    async def upload(self, source: Path, path: str, *, limit: int = 256 * MIB) -> None:
        """Copy a directory of the host into the sandbox, as the sandbox's user.

        Existing files stay unless the copy has the same names. Symbolic links are copied as links
        and resolved inside only. Needs ``tar`` inside.

        Raises:
            SandboxFileError: not a directory, larger than ``limit`` bytes, or not permitted.
            SandboxDied: the sandbox is gone.
        """

    @abstractmethod
    async def download(self, path: str, target: Path, *, limit: int = 256 * MIB) -> list[str]:
        """Copy a directory inside to a new directory on the host. Needs ``tar`` inside.

        Returns:
            What was left out, as ``path: reason``: links that point outside, devices, sockets.

        Raises:
            SandboxFileError: missing, larger than ``limit`` bytes, or ``target`` exists.
            SandboxDied: the sandbox is gone.
        """

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """Save the current file state; see :meth:`SandboxProvider.restore`.

        Raises:
            SnapshotFailed: the state could not be saved.
            SandboxDied: the sandbox is gone.
        """

    @abstractmethod
    async def forks(self, count: int, *, timeout: float = 120.0) -> list[Self]:
        """Make independent copies of this sandbox as it is now.

        Files are copied, and so is every shell in ``shells`` with its directory and environment.
        Processes, ``/dev/shm`` and shell variables that are not exported are not copied; the
        copy's :attr:`lost` names those that existed. This sandbox is not changed.

        Args:
            count: how many; the files are read once for all of them.
            timeout: seconds in which all of them must have started.

        Raises:
            SnapshotFailed: the files could not be copied completely and unchanged.
            SandboxStartFailed: a copy did not start; all copies are removed.
            SandboxDied: the sandbox is gone.
        """

    async def fork(self, *, timeout: float = 120.0) -> Self:
        """Make one copy; see :meth:`forks`."""
        return (await self.forks(1, timeout=timeout))[0]

    @abstractmethod
    async def close(self) -> None:
        """Kill all processes inside and release its resources. Idempotent."""


class SandboxProvider(AsyncClosing):
    """Starts sandboxes of one kind. One instance serves many concurrent sessions."""

    name: str
    """``docker`` or ``embedded``; recorded with every session."""

    @abstractmethod
    async def check(self) -> None:
        """Check whether sandboxes can be started here.

        Raises:
            SandboxUnavailable: with the reason and what to do about it.
        """

    @abstractmethod
    async def start(self, spec: SandboxSpec, *, timeout: float = 120.0) -> Sandbox:
        """Start a sandbox.

        Raises:
            ImageNotFound: the image does not exist here.
            SandboxStartFailed: the engine refused, ``timeout`` seconds passed, or a service was
                not ready in time.
            SandboxUnavailable: no engine answers, or ``allow`` is not supported here.
        """

    @abstractmethod
    async def restore(
        self, snapshot: Snapshot, spec: SandboxSpec, *, timeout: float = 120.0
    ) -> Sandbox:
        """Start a new sandbox with the file state of a snapshot.

        Raises:
            SnapshotFailed: the snapshot does not exist.
            SandboxStartFailed: as for :meth:`start`.
        """

    @abstractmethod
    async def discard(self, snapshot: Snapshot) -> None:
        """Delete a snapshot. Idempotent.

        Raises:
            SnapshotFailed: it names something that is no snapshot.
        """

    @abstractmethod
    async def reap(self) -> int:
        """Remove what killed processes left behind, and nothing else; return how many sandboxes.

        A sandbox is left behind when the process that started it (recorded in its labels with
        pid, start time and host boot) has exited.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close every sandbox and snapshot that this provider made. Idempotent."""

    def use_ready(self, take: Callable[[SandboxSpec], Sandbox | None]) -> None:
        """Use sandboxes that are already started for forks, where this provider supports it.

        Args:
            take: returns an unused sandbox of a spec, or None if there is none; the sandbox then
                belongs to this provider's caller.
        """

    @abstractmethod
    def isolation(self) -> dict[str, str]:
        """Describe what is isolated and what is not, as ``{aspect: sentence}``."""

"""What both kinds of sandbox share: checked and wrapped commands, and files through commands."""

from __future__ import annotations

import asyncio
import itertools
import math
import posixpath
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from trajgym.envs._threads import finish_despite_cancel
from trajgym.envs.sandbox._base import MIB, CommandResult, Sandbox, SandboxSpec
from trajgym.envs.sandbox._disk import DiskWatch
from trajgym.envs.sandbox._errors import SandboxDied, SandboxFileError
from trajgym.envs.sandbox._protocol import is_name
from trajgym.envs.sandbox._routes import plan_routes
from trajgym.envs.sandbox._services import start_service
from trajgym.envs.sandbox._shell import Shell, ShellPort, ShellState
from trajgym.envs.sandbox._stream import Stream
from trajgym.envs.sandbox._trees import (
    LIST_FILES,
    PACK,
    UNPACK,
    FileEntry,
    pack,
    read_listing,
    unpack,
)
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["HOME", "CommandSandbox", "check_spec", "close_all", "command_env", "gather_or_close"]

HOME = "/home/agent"
FILE_SECONDS = 60.0
TREE_SECONDS = 300.0
ARGUMENT_LIMIT = 128 * 1024 - 1
"""Linux accepts no longer single argument or variable."""

READ = """\
if [ ! -e "$1" ]; then exit 61; fi
if [ ! -f "$1" ]; then exit 62; fi
exec head -c "$2" <"$1"
"""
READ_ERRORS = {61: "there is no such file", 62: "it is not a regular file"}

WRITE = """\
umask 022
mode=
if [ -d "$1" ]; then exit 63; fi
if [ ! -e "$1" ]; then mode=644; elif [ ! -f "$1" ]; then exit 62; fi
[ -d "${1%/*}/" ] || mkdir -p -- "${1%/*}/" || exit
cat >"$1" || exit
[ "$mode" = "$2" ] || chmod -- "$2" "$1"
"""
TREE_ERRORS = {61: "there is no such directory", 64: "it is not a directory"}
WRITE_ERRORS = {62: "it is not a regular file", 63: "it is a directory"}


def command_env(spec: SandboxSpec) -> dict[str, str]:
    """Environment of every command: the defaults here, then the spec's."""
    threads = str(max(1, math.ceil(spec.limits.cpus)))
    return {
        "HOME": HOME,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        # Programs see all processors of the host, regardless of their limit.
        "OMP_NUM_THREADS": threads,
        **spec.env,
    }


def check_spec(spec: SandboxSpec) -> None:
    """Check a spec for what no provider could start.

    Raises:
        InvalidInput: a path inside is not absolute, or a limit is not positive.
    """
    for path in (spec.workdir, *spec.trees, *spec.readonly, *spec.mounts):
        if not path.startswith("/") or posixpath.normpath(path) != path or path[:2] in {"/", "//"}:
            raise InvalidInput(
                f"sandbox path {path!r} must be absolute, normal and below the root, like /work"
            )
    for key in spec.env:
        if not is_name(key):
            raise InvalidInput(f"sandbox variable {key!r}: use letters, digits and _")
    limits = spec.limits
    for name in ("memory", "cpus", "pids", "disk", "output"):
        if getattr(limits, name) <= 0:
            raise InvalidInput(f"sandbox limit {name}={getattr(limits, name)} must be positive")
    _check_services(spec)
    if plan_routes(spec.allow) and spec.network:
        raise InvalidInput("network=True reaches everything: omit it where allow names hosts")
    if spec.user is not None:
        uid, _, gid = spec.user.partition(":")
        if not (uid.isdigit() and gid.isdigit()):
            raise InvalidInput(f"sandbox user {spec.user!r} must be numbers, like 1000:1000")


def _check_services(spec: SandboxSpec) -> None:
    for service in spec.services:
        if not (service.name and service.command and 0 < service.seconds < math.inf):
            raise InvalidInput(f"{service}: a service needs a name, a command and a deadline")
    names = [service.name for service in spec.services]
    if len(set(names)) < len(names):
        raise InvalidInput(f"services {names}: each needs a name of its own")


def _vector(command: str | Sequence[str]) -> list[str]:
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    if not words or not words[0]:
        raise InvalidInput("an argument vector needs a program")
    # Lone surrogates come from models that emit broken escapes; they can't be passed to a program.
    return [word.encode(errors="replace").decode() for word in words]


def _refusal(words: Sequence[str], env: Mapping[str, str]) -> str:
    """Return why the kernel could not start this command; empty if it can."""
    texts = [*words, *(f"{key}={value}" for key, value in env.items())]
    if any("\0" in text for text in texts):
        return "the command holds a NUL byte"
    longest = max(len(text.encode(errors="replace")) for text in texts)
    if longest > ARGUMENT_LIMIT or sum(len(text) for text in texts) > 8 * ARGUMENT_LIMIT:
        return f"the command is too long ({longest} bytes): write a file and run that"
    for key in env:
        if not is_name(key):
            return f"{key!r} is not a valid variable name"
    return ""


class CommandSandbox(Sandbox):
    """A sandbox whose files are read and written by commands inside it.

    Links that the agent made are therefore resolved inside, never on the host.
    """

    _closed = False

    def __init__(self) -> None:
        self.shells: dict[str, Shell] = {}
        self._numbers = itertools.count()
        self.services: dict[str, Shell] = {}
        self.lost: tuple[str, ...] = ()
        self._disk_used = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def assign(self, spec: SandboxSpec) -> None:
        """See :meth:`Sandbox.assign`; labels outside this process are updated in the background."""
        self.spec = spec
        task = asyncio.create_task(self._relabel(spec.labels))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @abstractmethod
    async def _relabel(self, labels: Mapping[str, str]) -> None:
        """Show from outside which session this belongs to; raises nothing."""

    @abstractmethod
    async def _disk_use(self) -> int:
        """Return the bytes that the sandbox's files take."""

    def watch_disk(self, kill: Callable[[], Awaitable[None]]) -> DiskWatch:
        """Begin to watch a command; it is killed when the sandbox's files exceed their limit."""
        return DiskWatch(self._measure_disk, kill, self.spec.limits.disk, self._disk_used)

    async def _measure_disk(self) -> int:
        self._disk_used = await self._disk_use()
        return self._disk_used

    @abstractmethod
    async def _copies(self, count: int, timeout: float) -> list[Self]:
        """Start sandboxes with the files of this one."""

    async def forks(self, count: int, *, timeout: float = 120.0) -> list[Self]:
        """See :meth:`Sandbox.forks`."""
        if count < 1:
            raise InvalidInput(f"forks({count}): count must be at least 1")
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} is closed; start another one")
        states = [await shell.state() for shell in list(self.shells.values())]
        lost = [f"processes of shell {name!r}" for name, s in self.shells.items() if s.busy]
        lost += [f"the environment of busy shell {s.name!r}" for s in states if not s.exports]
        copies = await self._copies(count, timeout)
        try:
            for copy in copies:
                copy.lost = ("background processes", "the files in /dev/shm", *lost)
            await asyncio.gather(*(copy.start_services() for copy in copies))
            await asyncio.gather(*(copy.open_shells(states) for copy in copies))
        except BaseException:
            await finish_despite_cancel(close_all(copies))
            raise
        return copies

    async def start_services(self) -> None:
        """Start those of the spec's services that are not running, one after the other.

        Raises:
            SandboxStartFailed: one was not ready in time.
        """
        for service in self.spec.services:
            if service.name not in self.services:
                self.services[service.name] = await start_service(self, service)

    async def open_shells(self, states: Sequence[ShellState]) -> None:
        """Open shells with the state that they had in another sandbox."""
        for state in states:
            opener = partial(self.open_port, state.program, {})
            shell = Shell(state.name, state.program, state.cwd, self, opener)
            self.shells[state.name] = shell
            await shell.restore(state)

    async def helper(
        self, words: Sequence[str], *, stdin: bytes, limit: int, timeout: float
    ) -> CommandResult:
        """Run one of the library's commands, whose output may exceed the limit of a command's."""
        return await self._checked(words, timeout, "/", {}, stdin, limit)

    @abstractmethod
    async def open_port(self, program: str, env: Mapping[str, str]) -> ShellPort:
        """Start a shell with these variables in addition to the spec's."""

    async def shell(
        self,
        name: str = "",
        *,
        program: str = "/bin/sh",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Shell:
        """See :meth:`Sandbox.shell`."""
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} is closed; start another one")
        name = name or f"shell-{next(self._numbers)}"
        if name in self.shells:
            raise InvalidInput(f"sandbox {self.id} has a shell {name!r} already: see .shells")
        variables = dict(env or {})
        if refusal := _refusal([program, cwd or ""], variables):
            raise InvalidInput(f"shell {name!r}: {refusal}")
        where = posixpath.join(self.spec.workdir, cwd or "")
        opener = partial(self.open_port, program, variables)
        made = Shell(name, program, where, self, opener)
        self.shells[name] = made
        try:
            await made.run(":", timeout=FILE_SECONDS)
        except BaseException:
            self.shells.pop(name, None)
            await made.close()
            raise
        return made

    async def stream(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        limit: int = 64 * MIB,
    ) -> Stream:
        """See :meth:`Sandbox.stream`."""
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} is closed; start another one")
        words, variables = _vector(list(command)), dict(env or {})
        where = posixpath.join(self.spec.workdir, cwd or "")
        if refusal := _refusal([*words, where], variables):
            raise InvalidInput(f"stream: {refusal}")
        made = Stream(await self.open_port("/bin/sh", variables), limit)
        await made.begin(words, where, timeout=FILE_SECONDS)
        return made

    @abstractmethod
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
        """Run an argument vector that was checked, keeping ``limit`` bytes of each stream."""

    async def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> CommandResult:
        """See :meth:`Sandbox.run`.

        Raises:
            InvalidInput: the command is empty or the timeout is not positive.
            SandboxDied: the sandbox is gone.
        """
        return await self._checked(command, timeout, cwd, env or {}, stdin, self.spec.limits.output)

    async def _checked(
        self,
        command: str | Sequence[str],
        timeout: float,
        cwd: str | None,
        env: Mapping[str, str],
        stdin: bytes,
        limit: int,
    ) -> CommandResult:
        if not (timeout > 0 and math.isfinite(timeout)):
            raise InvalidInput(f"timeout={timeout} must be a positive number of seconds")
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} is closed; start another one")
        words = _vector(command)
        where = posixpath.join(self.spec.workdir, cwd or "")
        refusal = _refusal([*words, where], env)
        if refusal:
            return CommandResult(126, b"", f"sh: {refusal}\n".encode())
        return await self._execute(
            words, timeout=timeout, cwd=where, env=env, stdin=stdin, limit=limit
        )

    async def read_file(self, path: str, *, limit: int = 16 * MIB) -> bytes:
        """See :meth:`Sandbox.read_file`."""
        full = self._file_path(path)
        script = ["/bin/sh", "-c", READ, "sh", full, str(limit + 1)]
        result = await self._checked(script, FILE_SECONDS, "/", {}, b"", limit + 1)
        if not result.ok:
            raise _file_error("read", full, result, READ_ERRORS)
        if len(result.stdout) + result.dropped_stdout > limit:
            raise SandboxFileError(f"can't read {full}: it is larger than {limit} bytes")
        return result.stdout

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See :meth:`Sandbox.write_file`."""
        full = self._file_path(path)
        script = ["/bin/sh", "-c", WRITE, "sh", full, f"{mode:o}"]
        result = await self._checked(script, FILE_SECONDS, "/", {}, data, 4096)
        if not result.ok:
            raise _file_error("write", full, result, WRITE_ERRORS)

    async def list_files(self, path: str = ".") -> list[FileEntry]:
        """See :meth:`Sandbox.list_files`."""
        full = self._file_path(path)
        done = await self._script(LIST_FILES, [full], b"", 8 * MIB)
        if not done.ok:
            raise _file_error("list", full, done, TREE_ERRORS)
        return read_listing(full, done)

    async def upload(self, source: Path, path: str, *, limit: int = 256 * MIB) -> None:
        """See :meth:`Sandbox.upload`."""
        full = self._file_path(path)
        data = await asyncio.to_thread(pack, source, limit)
        done = await self._script(UNPACK, [full], data, 4096)
        if not done.ok:
            raise _file_error("write", full, done, {})

    async def download(self, path: str, target: Path, *, limit: int = 256 * MIB) -> list[str]:
        """See :meth:`Sandbox.download`."""
        full = self._file_path(path)
        done = await self._script(PACK, [full], b"", limit)
        if not done.ok:
            raise _file_error("read", full, done, TREE_ERRORS)
        if done.dropped_stdout:
            raise SandboxFileError(f"can't download {full}: it is larger than {limit} bytes")
        return await asyncio.to_thread(unpack, done.stdout, target)

    async def _script(
        self, script: str, arguments: Sequence[str], stdin: bytes, limit: int
    ) -> CommandResult:
        words = ["/bin/sh", "-c", script, "sh", *arguments]
        return await self._checked(words, TREE_SECONDS, "/", {}, stdin, limit)

    def _file_path(self, path: str) -> str:
        full = posixpath.join(self.spec.workdir, path)
        if not path or "\0" in path or len(full.encode(errors="replace")) > 4095:
            raise SandboxFileError(f"{path[:80]!r} is not the path of a file")
        return full


def _file_error(
    verb: str, path: str, result: CommandResult, known: Mapping[int, str]
) -> SandboxFileError:
    if result.timed_out:
        reason = f"no answer within {FILE_SECONDS:g} s"
    else:
        output = result.stderr.decode(errors="replace").strip()
        reason = known.get(result.exit_code) or output or f"exit status {result.exit_code}"
    return SandboxFileError(f"can't {verb} {path}: {reason}")


async def close_all(sandboxes: Sequence[Sandbox]) -> None:
    """Close several concurrently."""
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))


S = TypeVar("S", bound=Sandbox)


async def gather_or_close(starts: Sequence[asyncio.Future[S]]) -> list[S]:
    """Wait for all; if one fails or the caller is cancelled, those that started are closed."""
    try:
        return list(await asyncio.gather(*starts))
    except BaseException:
        for start in starts:
            start.cancel()
        await finish_despite_cancel(_close_started(starts))
        raise


async def _close_started(starts: Sequence[asyncio.Future[S]]) -> None:
    await asyncio.wait(starts)
    done = [s for s in starts if not s.cancelled() and s.exception() is None]
    await close_all([start.result() for start in done])

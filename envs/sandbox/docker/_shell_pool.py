"""The idle shells of a container, each with one attached stream."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trajgym.envs._threads import finish_despite_cancel
from trajgym.envs.sandbox._channel import LateOutput, Request
from trajgym.envs.sandbox._errors import SandboxDied, SandboxError
from trajgym.envs.sandbox._gate import Gate
from trajgym.envs.sandbox._protocol import FEED, MARK, ready_text
from trajgym.envs.sandbox.docker._errors import ContainerGone, EngineLost, EngineRefused
from trajgym.envs.sandbox.docker._start import user_of
from trajgym.envs.sandbox.docker._stream import ExecStream, attach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trajgym.envs.sandbox._base import SandboxSpec
    from trajgym.envs.sandbox.docker._engine import DockerEngine

__all__ = ["PooledShell", "ShellPool"]

T = TypeVar("T")
READY_SECONDS = 30.0
IDLE = 4
"""Number of idle shells that are kept; more are opened while more commands run concurrently."""
RETIRED = 16
"""Shells that are kept for the late output of background processes."""
FLUSH_SECONDS = 1.0
"""How long the output of a shell that has exited is waited for, if its streams stay open."""
POLL_SECONDS = 2.0


class PooledShell:
    """A shell in a container that waits for requests.

    Args:
        stream: its stdin and outputs.
        mark: value of the variable that marks its processes.
    """

    def __init__(self, stream: ExecStream, mark: str) -> None:
        self.stream = stream
        self.mark = mark
        self.pid = 0
        self.kills = 0
        """Number of processes that the memory limit had killed when it was opened."""
        self.poll: asyncio.Task[None] | None = None
        self._process = -1

    @property
    def alive(self) -> bool:
        """Whether it can take a request."""
        return not self.stream.ended.done()

    def watch(self, process: int) -> None:
        """End the stream when the shell's process has exited, although others may hold it open.

        Args:
            process: a pidfd, owned from now on.
        """
        self._process = process
        asyncio.get_running_loop().add_reader(process, self._died)

    def _died(self) -> None:
        self._forget_process()
        # Output that it wrote before may not have arrived yet.
        asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.stream.close)

    def _forget_process(self) -> None:
        if self._process >= 0:
            asyncio.get_running_loop().remove_reader(self._process)
            os.close(self._process)
            self._process = -1

    def close(self) -> None:
        """Close the stream; a shell that waits for a request exits by itself."""
        if self.poll is not None:
            self.poll.cancel()
        self._forget_process()
        self.stream.close()


class ShellPool:
    """The shells of one container.

    Args:
        engine: where it runs.
        spec: spec of the sandbox.
        container: the engine's id.
        name: for messages.
    """

    def __init__(self, engine: DockerEngine, spec: SandboxSpec, container: str, name: str) -> None:
        self._engine = engine
        self._spec = spec
        self._container = container
        self._name = name
        self._idle: list[PooledShell] = []
        self._retired: list[PooledShell] = []
        self._all: set[PooledShell] = set()
        self._opening: asyncio.Task[PooledShell] | None = None
        self._closed = False
        self.gate = Gate()
        """Held exclusively while the container is paused."""

    @property
    def alive(self) -> bool:
        """Whether all idle shells are running; they end with the container."""
        return all(shell.alive for shell in self._idle)

    def warm(self) -> None:
        """Begin to open a shell, so that the first command need not wait for it."""
        if self._opening is None and not self._idle and not self._closed:
            self._opening = asyncio.create_task(self.open())

    async def settle(self) -> None:
        """Wait until the shell that :meth:`warm` began to open waits for requests."""
        opening = self._opening
        if opening is None:
            return
        await asyncio.wait({opening})
        if self._opening is opening:
            self._opening = None
            self._give_opened(opening)

    async def take(self) -> PooledShell:
        """Return a shell that no other command uses.

        Raises:
            SandboxDied, SandboxError: none can be opened.
        """
        while self._idle:
            shell = self._idle.pop()
            if shell.alive:
                return shell
            shell.close()
        opening, self._opening = self._opening, None
        if opening is None:
            return await self.open()
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._give_opened)
            raise

    def _give_opened(self, opening: asyncio.Task[PooledShell]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self.give(opening.result())

    def give(self, shell: PooledShell) -> None:
        """Return a shell that is ready for another command to the pool."""
        if self._closed or not shell.alive or len(self._idle) >= IDLE:
            shell.close()
        else:
            self._idle.append(shell)

    def retire(self, shell: PooledShell) -> LateOutput:
        """Set aside a shell whose streams background processes hold: it takes no more commands."""
        late = LateOutput()
        shell.stream.sink = late
        self._retired.append(shell)
        if len(self._retired) > RETIRED:
            self._retired.pop(0).close()
        return late

    async def open(
        self, argv: Sequence[str] = ("/bin/sh",), env: Mapping[str, str] | None = None
    ) -> PooledShell:
        """Start a shell.

        Args:
            argv: a program that reads commands from its stdin.
            env: variables of a shell with state; None for one that only starts commands.

        Raises:
            SandboxDied: the container or the engine is gone.
            SandboxError: the engine refused, or there is no such shell inside.
        """
        mark = f"shell-{secrets.token_hex(8)}"
        silent = env is None
        return await self._open(argv, {**(env or {}), MARK: mark}, silent=silent)

    async def open_feed(self, words: Sequence[str], env: Mapping[str, str]) -> PooledShell:
        """Start a shell for one command with much stdin; ``words`` begin with its directory.

        Raises:
            SandboxDied, SandboxError: as for :meth:`open`.
        """
        return await self._open(["/bin/sh", "-c", FEED, "sh"], env, words=words)

    async def _open(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        silent: bool = False,
        words: Sequence[str] | None = None,
    ) -> PooledShell:
        # Nothing can be started in a container while the engine pauses it: both would wait.
        async with self.gate.passing():
            key = (secrets.token_hex(8), secrets.token_hex(8))
            line = [*argv, *key, *words] if words is not None else list(argv)
            exec_id = await self.create_exec(line, env, stdin=True)
            shell = PooledShell(await self.attach(exec_id), env[MARK])
            self._all.add(shell)
            shell.stream.ended.add_done_callback(lambda _: self._all.discard(shell))
            try:
                request = Request(shell.stream, shell.stream, 4096, key)
                if words is None:
                    shell.stream.send(ready_text(key, silent=silent))
                async with asyncio.timeout(READY_SECONDS):
                    report = await request.ended()
                request.finish()
                if report is None:
                    said = request.result(0)
                    why = (said.stdout + said.stderr).decode(errors="replace").strip()
                    await self.call(lambda api: api.inspect_container(self._container))
                    raise SandboxError(f"{self._name}: no shell {argv[0]} inside: {why}")
                # Before it can be killed: its process could not be found afterwards.
                process = await self._find_process(exec_id)
                if process is not None:
                    shell.watch(process)
                else:
                    shell.poll = asyncio.create_task(self._poll(shell.stream))
            except TimeoutError:
                shell.close()
                raise SandboxError(f"{self._name}: no shell in {READY_SECONDS:g} s") from None
            except BaseException:
                # If the container were paused before this has begun, both would wait for ever.
                await finish_despite_cancel(_begun(request))
                shell.close()
                raise
        shell.pid, shell.kills = report.pid, report.oom_kills
        return shell

    async def _poll(self, stream: ExecStream) -> None:
        """End a stream when its shell has exited, where its process is not visible here."""
        with contextlib.suppress(SandboxError):
            # The engine reports the exit late: it waits for others that hold the streams.
            while (await self.inspect_exec(stream.exec_id))["Running"]:  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
            # Output that it wrote before may not have arrived yet.
            await asyncio.wait({stream.ended}, timeout=FLUSH_SECONDS)
        stream.close()

    async def _find_process(self, exec_id: str) -> int | None:
        """Open the process of an exec, if the engine runs on this host."""
        pid = int((await self.inspect_exec(exec_id))["Pid"] or 0)
        try:
            handle = os.pidfd_open(pid)
        except (OSError, OverflowError):
            return None
        try:
            groups = await asyncio.to_thread(Path(f"/proc/{pid}/cgroup").read_text)
            if self._container in groups:
                return handle
        except OSError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        return None

    async def create_exec(
        self, argv: Sequence[str], env: Mapping[str, str], *, stdin: bool = False
    ) -> str:
        """Make an exec and return its id."""
        made = await self.call(
            lambda api: api.exec_create(
                self._container,
                list(argv),
                stdin=stdin,
                user=user_of(self._spec),
                environment=dict(env),
            )
        )
        return str(made["Id"])

    async def attach(self, exec_id: str) -> ExecStream:
        """Start an exec and return its stream."""
        try:
            return await attach(self._engine.host, exec_id)
        except EngineRefused as error:
            raise SandboxError(f"the engine refused ({self._name}): {error}") from error
        except (ContainerGone, EngineLost) as error:
            raise self.died(error) from error

    async def inspect_exec(self, exec_id: str) -> Any:
        """Return what the engine reports about an exec."""
        return await self.call(lambda api: api.exec_inspect(exec_id))

    async def status(self, argv: Sequence[str]) -> int | None:
        """Run a helper to its end, its output dropped, and return its exit status."""
        async with self.gate.passing():
            exec_id = await self.create_exec(argv, {})
            stream = await self.attach(exec_id)
            try:
                await asyncio.wait({stream.ended})
            finally:
                stream.close()
        status = (await self.inspect_exec(exec_id))["ExitCode"]
        return None if status is None else int(status)

    async def call(self, work: Callable[[Any], T]) -> T:
        """Call the engine about this container, which must exist."""
        try:
            return await self._engine.call(work)
        except EngineRefused as error:
            raise SandboxError(f"the engine refused ({self._name}): {error}") from error
        except (ContainerGone, EngineLost) as error:
            raise self.died(error) from error

    def died(self, error: Exception) -> SandboxDied:
        """Return the error for a sandbox that is gone."""
        return SandboxDied(f"sandbox {self._name} is gone: {error}")

    def close(self) -> None:
        """Close all shells, those in use included."""
        self._closed = True
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.add_done_callback(self._give_opened)
            opening.cancel()
        for shell in list(self._all):
            shell.close()
        self._idle.clear()
        self._retired.clear()


async def _begun(request: Request) -> None:
    """Wait until the shell has reported, or its stream has ended."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(READY_SECONDS):
            await request.ended()

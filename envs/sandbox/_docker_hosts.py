"""The shells that wait in a container for commands, each behind one attached stream."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trajgym.envs.sandbox._aio import Gate, see_through
from trajgym.envs.sandbox._channel import LateOutput, Request
from trajgym.envs.sandbox._docker_errors import ContainerGone, EngineLost, EngineRefused
from trajgym.envs.sandbox._docker_start import user_of
from trajgym.envs.sandbox._docker_stream import ExecStream, attach
from trajgym.envs.sandbox._errors import SandboxDied, SandboxError
from trajgym.envs.sandbox._protocol import FEED, MARK, ready_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trajgym.envs.sandbox._base import SandboxSpec
    from trajgym.envs.sandbox._docker_engine import DockerEngine

__all__ = ["DockerHosts", "Host"]

T = TypeVar("T")
READY_SECONDS = 30.0
IDLE = 4
"""Shells that are kept waiting; more are opened while more commands run at once."""
RETIRED = 16
"""Shells that are kept for the late output of background processes."""
FLUSH_SECONDS = 0.25
POLL_SECONDS = 2.0


class Host:
    """A shell in a container that waits for requests.

    Args:
        stream: its stdin and outputs.
        mark: what its environment is marked with.
    """

    def __init__(self, stream: ExecStream, mark: str) -> None:
        self.stream = stream
        self.mark = mark
        self.pid = 0
        self.kills = 0
        """How many processes the memory limit had killed when it was opened."""
        self.poll: asyncio.Task[None] | None = None
        self._process = -1

    @property
    def alive(self) -> bool:
        """Whether it can take a request."""
        return not self.stream.ended.done()

    def watch(self, process: int) -> None:
        """End the stream when the shell's process is dead, though others may hold it open.

        Args:
            process: a pidfd, owned from now on.
        """
        self._process = process
        asyncio.get_running_loop().add_reader(process, self._died)

    def _died(self) -> None:
        self._forget_process()
        # What it had said before may still be on the way.
        asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.stream.close)

    def _forget_process(self) -> None:
        if self._process >= 0:
            asyncio.get_running_loop().remove_reader(self._process)
            os.close(self._process)
            self._process = -1

    def close(self) -> None:
        """Let go of it; a shell that waits for a request ends by itself."""
        if self.poll is not None:
            self.poll.cancel()
        self._forget_process()
        self.stream.close()


class DockerHosts:
    """The shells of one container.

    Args:
        engine: where it runs.
        spec: of the sandbox.
        container: the engine's id.
        name: for messages.
    """

    def __init__(self, engine: DockerEngine, spec: SandboxSpec, container: str, name: str) -> None:
        self._engine = engine
        self._spec = spec
        self._container = container
        self._name = name
        self._idle: list[Host] = []
        self._retired: list[Host] = []
        self._open_hosts: set[Host] = set()
        self._opening: asyncio.Task[Host] | None = None
        self._closed = False
        self.gate = Gate()
        """Shut it before the container is paused."""

    @property
    def alive(self) -> bool:
        """Whether the shells that wait are all there; they end with the container."""
        return all(host.alive for host in self._idle)

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

    async def take(self) -> Host:
        """Return a shell that nobody else uses.

        Raises:
            SandboxDied, SandboxError: none can be opened.
        """
        while self._idle:
            host = self._idle.pop()
            if host.alive:
                return host
            host.close()
        opening, self._opening = self._opening, None
        if opening is None:
            return await self.open()
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._give_opened)
            raise

    def _give_opened(self, opening: asyncio.Task[Host]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self.give(opening.result())

    def give(self, host: Host) -> None:
        """Take back a shell that is ready for another command."""
        if self._closed or not host.alive or len(self._idle) >= IDLE:
            host.close()
        else:
            self._idle.append(host)

    def retire(self, host: Host) -> LateOutput:
        """Keep a shell whose streams background processes hold: nobody else may get them."""
        late = LateOutput()
        host.stream.sink = late
        self._retired.append(host)
        if len(self._retired) > RETIRED:
            self._retired.pop(0).close()
        return late

    async def open(
        self, argv: Sequence[str] = ("/bin/sh",), env: Mapping[str, str] | None = None
    ) -> Host:
        """Start a shell.

        Args:
            argv: a program that reads commands from its stdin.
            env: variables of a shell with state; None for one that only starts commands.

        Raises:
            SandboxDied: the container or the engine is gone.
            SandboxError: the engine refused, or there is no such shell inside.
        """
        mark = f"host-{secrets.token_hex(8)}"
        silent = env is None
        return await self._open(argv, {**(env or {}), MARK: mark}, silent=silent)

    async def open_feed(self, words: Sequence[str], env: Mapping[str, str]) -> Host:
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
    ) -> Host:
        # Nothing can be started in a container while the engine pauses it: both would wait.
        async with self.gate.passing():
            key = (secrets.token_hex(8), secrets.token_hex(8))
            line = [*argv, *key, *words] if words is not None else list(argv)
            exec_id = await self.create_exec(line, env, stdin=True)
            host = Host(await self.attach(exec_id), env[MARK])
            self._open_hosts.add(host)
            host.stream.ended.add_done_callback(lambda _: self._open_hosts.discard(host))
            try:
                request = Request(host.stream, host.stream, 4096, key)
                if words is None:
                    host.stream.send(ready_text(key, silent=silent))
                async with asyncio.timeout(READY_SECONDS):
                    report = await request.ended()
                request.finish()
                if report is None:
                    said = request.result(0)
                    why = (said.stdout + said.stderr).decode(errors="replace").strip()
                    await self.call(lambda api: api.inspect_container(self._container))
                    raise SandboxError(f"{self._name}: no shell {argv[0]} inside: {why}")
                # Before anybody can kill it: afterwards its process could not be found any more.
                process = await self._find_process(exec_id)
                if process is not None:
                    host.watch(process)
                else:
                    host.poll = asyncio.create_task(self._poll(host.stream))
            except TimeoutError:
                host.close()
                raise SandboxError(f"{self._name}: no shell in {READY_SECONDS:g} s") from None
            except BaseException:
                # Were the container paused before this has begun, both would wait for ever.
                await see_through(_begun(request))
                host.close()
                raise
        host.pid, host.kills = report.pid, report.oom_kills
        return host

    async def _poll(self, stream: ExecStream) -> None:
        """End a stream when its shell is dead; only the engine knows its process."""
        with contextlib.suppress(SandboxError):
            # The engine tells nobody in time: it waits for others that hold the streams.
            while (await self.inspect_exec(stream.exec_id))["Running"]:  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
            # What it had said before may still be on the way.
            await asyncio.wait({stream.ended}, timeout=FLUSH_SECONDS)
        stream.close()

    async def _find_process(self, exec_id: str) -> int | None:
        """Open the process of an exec, if the engine's processes are this host's."""
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
        """What the engine knows about an exec."""
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
        """Call the engine about this container, which must be there."""
        try:
            return await self._engine.call(work)
        except EngineRefused as error:
            raise SandboxError(f"the engine refused ({self._name}): {error}") from error
        except (ContainerGone, EngineLost) as error:
            raise self.died(error) from error

    def died(self, error: Exception) -> SandboxDied:
        """The error that says so."""
        return SandboxDied(f"sandbox {self._name} is gone: {error}")

    def close(self) -> None:
        """Let go of all shells, those that are given out, too."""
        self._closed = True
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.add_done_callback(self._give_opened)
            opening.cancel()
        for host in list(self._open_hosts):
            host.close()
        self._idle.clear()
        self._retired.clear()


async def _begun(request: Request) -> None:
    """Wait until the shell has said something, or its stream has ended."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(READY_SECONDS):
            await request.ended()

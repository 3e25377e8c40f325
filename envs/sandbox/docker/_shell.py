"""A shell with state in a container."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajgym.envs.sandbox._errors import SandboxError
from trajgym.envs.sandbox._shell import ShellPort

if TYPE_CHECKING:
    from trajgym.envs.sandbox._channel import Channel
    from trajgym.envs.sandbox._protocol import Report
    from trajgym.envs.sandbox.docker._sandbox import DockerSandbox
    from trajgym.envs.sandbox.docker._shell_pool import PooledShell

__all__ = ["DockerShellPort"]


class DockerShellPort(ShellPort):
    """One exec of a container.

    Args:
        sandbox: the sandbox in which it runs.
        shell: the shell.
    """

    def __init__(self, sandbox: DockerSandbox, shell: PooledShell) -> None:
        self.channel = shell.stream
        self._sandbox = sandbox
        self._shell = shell
        self._taps: list[PooledShell] = []
        self._known = shell.kills

    async def tap(self) -> tuple[Channel, str, str]:
        """See :meth:`ShellPort.tap`: the outputs of another, idle shell."""
        tap = await self._sandbox.shell_pool.take()
        self._taps.append(tap)
        if len(self._taps) > 16:
            self._taps.pop(0).close()
        return tap.stream, f"/proc/{tap.pid}/fd/7", f"/proc/{tap.pid}/fd/8"

    async def stop(self, mark: str) -> None:
        """See :meth:`ShellPort.stop`."""
        await self._sandbox.kill_marked(mark)

    async def stop_children(self) -> None:
        """See :meth:`ShellPort.stop_children`."""
        await self._sandbox.kill_marked(self._shell.mark, spare=self._shell.pid)

    async def exit_code(self) -> int:
        """See :meth:`ShellPort.exit_code`."""
        return await self._sandbox.exit_code(self._shell.stream.exec_id)

    async def oom_kills(self, report: Report | None) -> int:
        """See :meth:`ShellPort.oom_kills`; without a report, a new shell reads the count."""
        if report is not None:
            self._known += report.oom_kills
            return report.oom_kills
        fresh = await self._sandbox.shell_pool.open()
        self._sandbox.shell_pool.give(fresh)
        found, self._known = fresh.kills - self._known, fresh.kills
        return found

    async def kill(self) -> None:
        """See :meth:`ShellPort.kill`."""
        await self._sandbox.kill_marked(self._shell.mark)
        self._drop()

    async def close(self, mark: str) -> None:
        """See :meth:`ShellPort.close`."""
        try:
            await self._sandbox.kill_marked(mark)
            await self._sandbox.kill_marked(self._shell.mark)
        except SandboxError:
            return  # the sandbox is gone
        finally:
            self._drop()

    def _drop(self) -> None:
        for shell in [self._shell, *self._taps]:
            shell.close()
        self._taps.clear()

"""A shell with state in an embedded sandbox, whose namespaces exist as long as it runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._channel import Channel, Request
from trajgym.envs.sandbox._errors import SandboxDied, SandboxError
from trajgym.envs.sandbox._protocol import ready_text
from trajgym.envs.sandbox._shell import ShellPort
from trajgym.envs.sandbox.embedded._kill import find_inner, kill_marked
from trajgym.envs.sandbox.embedded._plan import LATE, LATE_INSIDE
from trajgym.envs.sandbox.embedded._process_channel import FifoChannel, ProcessChannel

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.envs.sandbox._protocol import Report
    from trajgym.envs.sandbox.embedded._cgroups import ControlGroup

__all__ = ["EmbeddedShellPort"]

READY_SECONDS = 30.0


class EmbeddedShellPort(ShellPort):
    """One shell in namespaces of its own.

    Args:
        channel: the outermost process; when it exits, the kernel kills its pid namespace.
        mark: value of the variable that marks the shell's processes.
        folder: folder of the sandbox, on the host.
        running: the sandbox's set of running shells.
        group: its control groups.
    """

    def __init__(
        self,
        channel: ProcessChannel,
        mark: str,
        folder: Path,
        running: set[ProcessChannel],
        group: ControlGroup,
    ) -> None:
        self.channel = channel
        self._process = channel
        self._mark = mark
        self._folder = folder / LATE
        self._running = running
        self._taps: list[FifoChannel] = []
        self._count = 0
        self._shell = 0
        self._group = group
        self._known = group.oom_kills()
        channel.ended.add_done_callback(lambda _: running.discard(channel))

    async def ready(self) -> None:
        """Wait until the shell takes requests.

        Raises:
            SandboxError: it does not start.
        """
        request = Request(self.channel, self.channel, 4096)
        self.channel.send(ready_text(request.key, silent=False))
        try:
            async with asyncio.timeout(READY_SECONDS):
                report = await request.ended()
        except TimeoutError:
            await self.kill()
            raise SandboxError(f"no shell in {READY_SECONDS:g} s") from None
        except BaseException:
            await self.kill()
            raise
        finally:
            request.finish()
        if report is None:
            await self.kill()
            output = request.result(0).stderr.decode(errors="replace").strip()
            raise SandboxError(f"no such shell inside: {output}")
        self._shell = await asyncio.to_thread(find_inner, self._process.pid, report.pid)

    async def tap(self) -> tuple[Channel, str, str]:
        """See :meth:`ShellPort.tap`: named pipes that the host made."""
        self._count += 1
        names = [f"{self._process.pid}-{self._count}-{kind}" for kind in ("out", "err")]
        tap = FifoChannel(*(self._folder / name for name in names))
        self._taps.append(tap)
        if len(self._taps) > 16:
            self._taps.pop(0).close()
        return tap, f"{LATE_INSIDE}/{names[0]}", f"{LATE_INSIDE}/{names[1]}"

    async def stop(self, mark: str) -> None:
        """See :meth:`ShellPort.stop`."""
        await asyncio.to_thread(kill_marked, self._shell, mark)

    async def stop_children(self) -> None:
        """See :meth:`ShellPort.stop_children`."""
        await asyncio.to_thread(kill_marked, self._shell, self._mark)

    async def exit_code(self) -> int:
        """See :meth:`ShellPort.exit_code`."""
        if self._process.killed_from_outside and self._group.oom_kills() <= self._known:
            raise SandboxDied(f"sandbox {self._folder.parent.name} was killed from outside")
        return self._process.status or 0

    async def oom_kills(self, report: Report | None) -> int:
        """See :meth:`ShellPort.oom_kills`: the sandbox's control group counts."""
        del report
        count = self._group.oom_kills()
        found, self._known = count - self._known, count
        return found

    async def kill(self) -> None:
        """See :meth:`ShellPort.kill`: kills everything in its namespace."""
        self._process.kill()
        await asyncio.wait({self._process.ended}, timeout=10.0)
        self._process.close()
        for tap in self._taps:
            tap.close()
        self._taps.clear()

    async def close(self, mark: str) -> None:
        """See :meth:`ShellPort.close`."""
        del mark
        await self.kill()

"""The services that a sandbox's spec declares: started with it, and again in every fork."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from trajgym.envs._threads import finish_despite_cancel
from trajgym.envs.sandbox._errors import SandboxStartFailed
from trajgym.envs.sandbox._protocol import quote
from trajgym.envs.sandbox._shell import Shell

if TYPE_CHECKING:
    from trajgym.envs.sandbox._base import CommandResult, Service
    from trajgym.envs.sandbox._command import CommandSandbox

__all__ = ["start_service"]

BEGIN = "/bin/sh -c {command} & _tg_service=$!"
# Don't wait for a service that has exited. No `exit` here: it would end the shell that runs it.
WAIT = """\
_tg_wait() {{
    until /bin/sh -c {ready} </dev/null >/dev/null 2>&1; do
        kill -0 "$_tg_service" 2>/dev/null || return 1
        sleep 0.05
    done
}}
_tg_wait
"""
BEGIN_SECONDS = 30.0
FLUSH_SECONDS = 0.1
LATE_SECONDS = 3.0
"""How long the output of a service that has ended is waited for, if there is none."""
TAIL = 500


async def start_service(sandbox: CommandSandbox, service: Service) -> Shell:
    """Start a service in a shell of its own and wait until it is ready.

    Returns:
        The shell; its late output is what the service printed.

    Raises:
        SandboxStartFailed: it exited, or was not ready in time; the message includes its output.
        SandboxDied: the sandbox is gone.
    """
    opener = partial(sandbox.open_port, "/bin/sh", {})
    shell = Shell(f"service-{service.name}", "/bin/sh", sandbox.spec.workdir, sandbox, opener)
    try:
        begun = await shell.run(BEGIN.format(command=quote(service.command)), timeout=BEGIN_SECONDS)
        if service.ready:
            wait = WAIT.format(ready=quote(service.ready))
            done = await shell.run(wait, timeout=service.seconds)
            if not done.ok:
                output = await _output(shell, begun, wait=not done.timed_out)
                raise SandboxStartFailed(_failure(service, done, output))
    except BaseException:
        await finish_despite_cancel(shell.close())
        raise
    return shell


async def _output(shell: Shell, begun: CommandResult, *, wait: bool) -> bytes:
    """Return what a service printed; its last output may still be on the way."""
    end = asyncio.get_running_loop().time() + (LATE_SECONDS if wait else 0.0)
    output = b""
    while True:
        await asyncio.sleep(FLUSH_SECONDS)
        before, output = output, begun.stdout + begun.stderr + shell.late_output
        if (output and output == before) or asyncio.get_running_loop().time() >= end:
            return output


def _failure(service: Service, done: CommandResult, said: bytes) -> str:
    why = f"was not ready in {service.seconds:g} s" if done.timed_out else "ended"
    words = said[-TAIL:].decode(errors="replace").strip()
    return f"service {service.name!r} {why}: {words or 'it printed nothing'}"

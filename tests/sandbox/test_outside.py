"""What ends a sandbox from outside is told apart from what ends a program inside."""

from __future__ import annotations

import asyncio

import pytest

from tests.sandbox.outside import end_from_outside
from trajgym.envs.sandbox import Sandbox, SandboxDied, SandboxError, SandboxProvider, SandboxSpec

KINDS = [pytest.param("docker", marks=pytest.mark.docker), "bubblewrap", "unshare"]
BEGUN = "touch /work/begun; sleep 1000"


async def begun(box: Sandbox) -> None:
    async with asyncio.timeout(60):
        while not (await box.run("test -e /work/begun")).ok:
            pass


@pytest.mark.parametrize("provider", KINDS, indirect=True)
async def test_a_command_does_not_end_with_a_status(
    provider: SandboxProvider, spec: SandboxSpec
) -> None:
    """A command and a shell raise: an exit status would be taken for the command's own."""
    for way in ("run", "shell"):
        box = await provider.start(spec)
        where = await box.shell() if way == "shell" else box
        running = asyncio.create_task(where.run(BEGUN, timeout=600))
        await begun(box)
        end_from_outside(box)
        with pytest.raises(SandboxDied):
            await running
        await box.close()


@pytest.mark.parametrize("provider", KINDS, indirect=True)
async def test_a_program_does_not_seem_to_have_ended(
    provider: SandboxProvider, spec: SandboxSpec
) -> None:
    """Reading from a program raises what tells a sandbox that is gone from one that it left."""
    async with asyncio.timeout(120):
        box = await provider.start(spec)
        stream = await box.stream(["sh", "-c", "echo begun; sleep 1000"])
        assert await stream.read() == b"begun"
        end_from_outside(box)
        with pytest.raises(SandboxDied):
            await stream.read()
        await box.close()


@pytest.mark.parametrize("provider", KINDS, indirect=True)
async def test_what_a_command_does_to_itself_is_no_fault_of_the_sandbox(
    provider: SandboxProvider, spec: SandboxSpec
) -> None:
    """Programs that kill themselves, their shell and all that they can reach have ended."""
    async with asyncio.timeout(120), await provider.start(spec) as box:
        shell = await box.shell()
        for where in (box, shell):
            assert (await where.run("kill -9 $$", timeout=60)).exit_code == 137
        for line in ("kill -9 $$", "kill -9 $PPID", "kill -9 -1"):
            for where in (box, shell):  # what is out of reach differs: none of it raises
                await where.run(line, timeout=60)
            stream = await box.stream(["sh", "-c", line])
            with pytest.raises(SandboxError) as raised:
                await stream.read()
            assert not isinstance(raised.value, SandboxDied), line
        assert (await box.run("true")).ok

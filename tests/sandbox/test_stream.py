"""Programs that keep running inside a sandbox and exchange lines."""

from __future__ import annotations

import asyncio

import pytest

from trajgym.envs.sandbox import SandboxDied, SandboxError, SandboxProvider, SandboxSpec
from trajgym.trajectory import InvalidInput

ECHO = "import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)"


async def test_lines_go_in_and_come_out(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Lines of a program are read whole, even long ones; closing the stream ends the program."""
    async with await provider.start(spec) as box, asyncio.timeout(120):
        stream = await box.stream(["python3", "-c", ECHO], env={"NAME": "value"})
        stream.send(b"one")
        stream.send(b"two")
        assert [await stream.read(), await stream.read()] == [b"ONE", b"TWO"]
        stream.send(b"x" * 300_000)
        assert len(await stream.read()) == 300_000
        await stream.close()
        assert stream.ended
        seen = await box.run("for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done")
        assert b"sys.stdin" not in seen.stdout


async def test_the_end_of_a_program_is_seen(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Reading a line raises an error when the program exits, with its stderr."""
    async with await provider.start(spec) as box, asyncio.timeout(120):
        stream = await box.stream(["sh", "-c", "echo last; echo sorry >&2; exit 3"])
        assert await stream.read() == b"last"
        with pytest.raises(SandboxError, match="sorry"):
            await stream.read()
        missing = await box.stream(["no-such-program"])
        with pytest.raises(SandboxError, match="no-such-program"):
            await missing.read()


async def test_closing_the_sandbox_ends_its_streams(
    provider: SandboxProvider, spec: SandboxSpec
) -> None:
    """Reading a line raises an error when the sandbox is removed."""
    box = await provider.start(spec)
    async with asyncio.timeout(120):
        stream = await box.stream(["sleep", "1000"])
        reading = asyncio.create_task(stream.read())
        await box.close()
        with pytest.raises(SandboxError):
            await reading
        with pytest.raises(SandboxDied):
            await box.stream(["sleep", "1"])


async def test_output_that_nobody_reads_is_bounded(
    provider: SandboxProvider, spec: SandboxSpec
) -> None:
    """A program that floods its stdout is cut off instead of filling the memory of the host."""
    async with await provider.start(spec) as box, asyncio.timeout(120):
        stream = await box.stream(["sh", "-c", "yes | head -c 3000000; sleep 1000"], limit=1 << 20)
        while not stream.ended:
            await asyncio.sleep(0)
        with pytest.raises(SandboxError, match="were not read"):
            await stream.read()
        await stream.close()
        with pytest.raises(InvalidInput):
            await box.stream([])

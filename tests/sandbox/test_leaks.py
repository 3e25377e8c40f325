"""Many sandboxes in a row leave nothing: no process, descriptor, thread, mount, file or memory."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sandbox.conftest import docker

if TYPE_CHECKING:
    from trajgym.envs.sandbox import SandboxProvider, SandboxSpec

ROUNDS = {"embedded": 10, "docker": 2}


def _held() -> dict[str, int]:
    gc.collect()
    own = os.getpid()
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "children": len(Path(f"/proc/{own}/task/{own}/children").read_text().split()),
        "mounts": Path("/proc/self/mountinfo").read_text().count("trajgym"),
    }


def _kibibytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def _use(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Everything that a session may do with a sandbox, the bad parts too."""
    async with await provider.start(spec) as box:
        await box.run("echo x > file; sleep 300 &")
        await box.run("sleep 300", timeout=0.05)
        shell = await box.shell()
        await shell.run("sleep 300 &")
        await shell.run("echo late")
        running = asyncio.create_task(box.run("sleep 300"))
        async with await box.fork() as fork:
            await fork.write_file("more", b"x" * 100_000)
        running.cancel()
        await asyncio.wait({running})


async def test_nothing_is_left(
    provider: SandboxProvider, spec: SandboxSpec, tmp_path: Path
) -> None:
    """After many sandboxes in a row the process holds what it held after the first few."""
    await asyncio.gather(*(_use(provider, spec) for _ in range(3)))
    before, memory = _held(), _kibibytes()
    for _ in range(ROUNDS[provider.name]):
        await _use(provider, spec)
    after = _held()
    # The engine's client and the loop keep a few threads and connections of their own.
    assert all(after[name] <= before[name] + 6 for name in before), (before, after)
    assert after["mounts"] == before["mounts"]
    assert after["children"] == before["children"]
    assert _kibibytes() - memory < 20_000
    if provider.name == "embedded":
        assert [path.name for path in (tmp_path / "sandboxes").iterdir()] in (
            [],
            [provider.layers.folder.name],  # type: ignore[attr-defined]
        )
    else:
        label = f"label=trajgym.provider={provider._id}"  # type: ignore[attr-defined]
        assert not docker("ps", "-aq", "--filter", label)
        assert not docker("images", "-q", "--filter", label)


async def test_unread_stdin_is_no_complaint(
    provider: SandboxProvider, spec: SandboxSpec, caplog: pytest.LogCaptureFixture
) -> None:
    """A command that reads none of its much stdin ends quietly, also when it is killed."""
    data = b"x" * 3_000_000
    with caplog.at_level(logging.WARNING):
        async with await provider.start(spec) as box:
            assert (await box.run("true", stdin=data)).ok
            assert (await box.run("sleep 60", stdin=data, timeout=0.3)).timed_out
            running = asyncio.create_task(box.run("sleep 60", stdin=data))
            await box.run("true")
            running.cancel()
            await asyncio.wait({running})
        await asyncio.sleep(0)
    assert not caplog.records

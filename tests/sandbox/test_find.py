"""Which kind of sandbox one gets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from trajgym.envs.sandbox import (
    SandboxSpec,
    SandboxUnavailable,
    _find,
    close_shared_providers,
    find_provider,
    hold_shared_providers,
    release_shared_providers,
    shared_provider,
)
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
async def test_auto_takes_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker is taken where an engine answers."""
    monkeypatch.setattr(_find, "ENGINE_SECONDS", 240.0)  # for a busy one
    async with await find_provider("auto") as provider:
        assert provider.name == "docker"


async def test_auto_without_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded sandbox is taken where none answers; asking for Docker is an error then."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    async with await find_provider("auto") as provider:
        assert provider.name == "embedded"
    with pytest.raises(SandboxUnavailable, match=r"none\.sock"):
        await find_provider("docker")


async def test_auto_with_a_hung_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that accepts and never answers does not hold the choice up."""
    connections: list[asyncio.StreamWriter] = []
    path = f"{tmp_path}/hung.sock"
    server = await asyncio.start_unix_server(lambda _, writer: connections.append(writer), path)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    async with server, await find_provider("auto") as provider:
        assert provider.name == "embedded"
        for writer in connections:
            writer.close()
    assert connections


async def test_unknown_kind() -> None:
    """A kind that does not exist is refused with those that do."""
    with pytest.raises(InvalidInput, match="auto, docker or embedded"):
        await find_provider("vm")  # type: ignore[arg-type]


async def test_shared_provider() -> None:
    """A process has one shared provider of a kind until they are closed."""
    first, second = await asyncio.gather(shared_provider("embedded"), shared_provider("embedded"))
    assert first is second
    assert await shared_provider("embedded") is first
    await close_shared_providers()
    await close_shared_providers()
    fresh = await shared_provider("embedded")
    assert fresh is not first
    await close_shared_providers()


def test_import_is_light() -> None:
    """Importing the sandboxes does not import the Docker SDK."""
    code = "import sys, trajgym.envs.sandbox; print(*({'docker', 'requests'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


async def test_overlapping_runs_share_their_providers() -> None:
    """The run that ends first leaves the other's sandboxes alone; the last one closes them."""
    hold_shared_providers()
    hold_shared_providers()
    provider = await shared_provider("embedded")
    box = await provider.start(SandboxSpec())
    await release_shared_providers()
    assert (await box.run("echo on")).stdout == b"on\n"
    await release_shared_providers()
    assert not box.alive
    assert await shared_provider("embedded") is not provider
    await close_shared_providers()

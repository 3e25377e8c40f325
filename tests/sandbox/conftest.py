"""Sandboxes to test: containers, and both embedded kinds."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.images_needed import need_image
from trajgym.envs.sandbox import DockerProvider, EmbeddedProvider, SandboxProvider, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BASE = "trajgym/base:bookworm"
KINDS = [pytest.param("docker", marks=pytest.mark.docker), "bubblewrap"]


def docker(*words: str) -> str:
    """Run the Docker command line and return what it prints."""
    done = subprocess.run(
        ["docker", *words], capture_output=True, text=True, timeout=240, check=True
    )
    return done.stdout


def tiny_root() -> bytes:
    """A root file system of a shell and a few programs, as a tar archive."""
    programs = ["/bin/sh", "/bin/sleep", "/bin/touch", "/usr/bin/test", "/bin/cat", "/usr/bin/stat"]
    programs += ["/bin/chmod"]
    files = {program: Path(program).resolve() for program in programs}
    for program in programs:
        listing = subprocess.run(
            ["ldd", program], capture_output=True, text=True, check=True
        ).stdout
        for word in listing.split():
            if word.startswith("/"):
                files[word] = Path(word).resolve()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, file in files.items():
            archive.add(file, name.lstrip("/"))
    return buffer.getvalue()


@pytest.fixture(scope="session")
def engine() -> None:
    """A Docker engine with the base image; a missing one fails the test, it never skips."""
    need_image(BASE, "scripts/base-image.sh")


@pytest.fixture
async def provider(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[SandboxProvider]:
    """A provider of the kind that the test is parametrised with."""
    kind: str = request.param
    made: SandboxProvider
    if kind == "docker":
        request.getfixturevalue("engine")
        made = DockerProvider()
    else:
        made = EmbeddedProvider(tmp_path / "sandboxes", tool=kind)
    async with made:
        await made.check()
        yield made


@pytest.fixture
def spec() -> SandboxSpec:
    """The plainest sandbox."""
    return SandboxSpec(image=BASE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that asks for a provider over each kind, unless it names its own."""
    named = any(
        "provider" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")
    )
    if "provider" in metafunc.fixturenames and not named:
        metafunc.parametrize("provider", KINDS, indirect=True)

"""Providers and tasks for the tests of SWE environments."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from trajgym.envs.sandbox import (
    DockerProvider,
    EmbeddedProvider,
    SandboxProvider,
    close_shared_providers,
)
from trajgym.envs.swe import SweRecord, load_tasks
from trajgym.envs.swe._sources import base_tree

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from trajgym.trajectory import Task

OFFLINE = "TRAJGYM_TEST_OFFLINE"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that fetch from the package index, if asked; otherwise they must pass."""
    if not os.environ.get(OFFLINE):
        return
    left_out = [item for item in items if item.get_closest_marker("index")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"index: fetches from the package index; {OFFLINE}=1 deselects these"
    )


@pytest.fixture(params=[pytest.param("docker", marks=pytest.mark.docker), "embedded"])
async def provider(request: pytest.FixtureRequest) -> AsyncIterator[SandboxProvider]:
    """Each kind of sandbox in turn."""
    made: SandboxProvider = DockerProvider() if request.param == "docker" else EmbeddedProvider()
    await made.check()
    async with made:
        yield made


@pytest.fixture
async def sandboxes() -> AsyncIterator[SandboxProvider]:
    """One kind of sandbox, for what does not depend on the kind."""
    async with EmbeddedProvider() as made:
        await made.check()
        yield made


@pytest.fixture(autouse=True)
async def no_provider_stays() -> AsyncIterator[None]:
    """Environments share one provider of each kind; it belongs to the test's event loop."""
    yield
    await close_shared_providers()


@pytest.fixture
def spans() -> Task:
    """A task that is shipped with the package."""
    return load_tasks(["trajgym__spans-1.0"])[0]


@pytest.fixture
def edit(spans: Task, tmp_path: Path) -> Callable[..., bytes]:
    """Return a function that makes the patch of some edits to the base tree."""
    tree = base_tree(SweRecord.of(spans))

    def make(*script: str, **files: str) -> bytes:
        work = tmp_path / "work"
        subprocess.run(["git", "clone", "-q", tree.repo, work], check=True, timeout=60)
        for name, text in files.items():
            path = work / name.replace("__", "/").replace("_py", ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for line in script:
            subprocess.run(line, shell=True, cwd=work, check=True, timeout=60)
        subprocess.run(["git", "add", "-A", "-f"], cwd=work, check=True, timeout=60)
        command = ["git", "diff", "--cached", "--binary", "HEAD"]
        return subprocess.run(command, cwd=work, check=True, capture_output=True).stdout

    return make

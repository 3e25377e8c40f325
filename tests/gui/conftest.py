"""Real Chromium in real containers; a missing image fails the test, it never skips."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from trajgym.envs.gui import BROWSER_IMAGE, browser_spec
from trajgym.envs.sandbox import DockerProvider, Sandbox


@pytest.fixture(scope="session")
def browser_image() -> None:
    """The image of the browser environment."""
    if os.environ.get("TRAJGYM_TEST_DOCKER") == "0":
        pytest.skip("TRAJGYM_TEST_DOCKER=0")
    try:
        subprocess.run(
            ["docker", "image", "inspect", BROWSER_IMAGE],
            capture_output=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        pytest.fail(
            f"no Docker engine with {BROWSER_IMAGE} ({error}): run scripts/docker-engine.sh and "
            "scripts/gui-image.sh, or set TRAJGYM_TEST_DOCKER=0 to leave these tests out"
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box(browser_image: None) -> AsyncIterator[Sandbox]:
    """A sandbox that a module's tests share."""
    async with DockerProvider() as provider:
        async with await provider.start(browser_spec(miniwob=True)) as sandbox:
            yield sandbox

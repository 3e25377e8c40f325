"""Real Chromium in real containers; a missing image fails the test, it never skips."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.images_needed import need_image
from trajgym.envs.gui import BROWSER_IMAGE, browser_spec
from trajgym.envs.sandbox import DockerProvider, Sandbox


@pytest.fixture(scope="session")
def browser_image() -> None:
    """The image of the browser environment."""
    need_image(BROWSER_IMAGE, "scripts/gui-image.sh")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box(browser_image: None) -> AsyncIterator[Sandbox]:
    """A sandbox that a module's tests share."""
    async with DockerProvider() as provider:
        async with await provider.start(browser_spec(miniwob=True)) as sandbox:
            yield sandbox

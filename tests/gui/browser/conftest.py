"""One browser for the tests of a module, at the first page of `PAGES` for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.gui.browser.pages import PAGES
from trajgym.envs.gui import Browser
from trajgym.envs.gui.actions import GoTo
from trajgym.envs.sandbox import Sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(box: Sandbox) -> AsyncIterator[Browser]:
    async with Browser(box, pages=PAGES) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def browser(shared: Browser) -> Browser:
    await shared.act([GoTo("http://pages.test/")])
    return shared

"""Chromium itself: the process, without tabs, cookies or settings of a session."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from playwright.async_api import BrowserContext

__all__ = ["Chromium"]

_FLAGS = [
    # The container is the sandbox: Chromium's own sandbox needs privileges that it lacks there.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--force-color-profile=srgb",
    "--disable-lcd-text",
    "--disable-smooth-scrolling",
    # Frames stay in the process of their page: one accessibility tree, one session.
    "--disable-site-isolation-trials",
    "--disable-features=IsolateOrigins,site-per-process,Translate,MediaRouter,OptimizationHints",
]
_LEFT_OUT = ["--disable-ipc-flooding-protection"]
"""Arguments of Playwright that are left out: with them, a page that changes its address without end
blocks Chromium for minutes; without, Chromium limits it to 200 changes in 10 seconds."""
_CLOSE_SECONDS = 10.0


class Chromium:
    """A running Chromium. Every session gets a new profile in it.

    Args:
        executable: its path.
        hosts: addresses of host names: ``{"shop.test": "127.0.0.1:8000"}``.
        flags: further command-line arguments.
    """

    def __init__(
        self, executable: str, hosts: Mapping[str, str], flags: Sequence[str] = ()
    ) -> None:
        self.launch = (executable, dict(hosts), list(flags))
        """What it was started with."""
        self.gone = asyncio.Event()
        """Set when it has ended."""

    async def start(self) -> None:
        """Start it."""
        from playwright.async_api import async_playwright

        executable, hosts, flags = self.launch
        rules = ",".join(f"MAP {name} {to}" for name, to in hosts.items())
        self._playwright = await async_playwright().start()
        self._browser = await self._playwright.chromium.launch(
            executable_path=executable,
            args=[*_FLAGS, f"--host-resolver-rules={rules}", *flags],
            ignore_default_args=_LEFT_OUT,
            handle_sigint=False,
            handle_sigterm=False,
        )
        self._browser.on("disconnected", lambda _: self.gone.set())

    @property
    def version(self) -> str:
        """Its version, such as ``140.0.7339.80``."""
        return str(self._browser.version)

    async def profile(self, **options: Any) -> BrowserContext:
        """Return a new profile with Playwright's options of a context."""
        return await self._browser.new_context(**options)

    async def close(self) -> None:
        """End it."""
        for closing in (self._browser.close, self._playwright.stop):
            with contextlib.suppress(Exception):  # it may have ended already, or not answer
                await asyncio.wait_for(closing(), _CLOSE_SECONDS)

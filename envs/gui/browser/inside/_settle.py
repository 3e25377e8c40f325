"""Waiting until the effects of an action have completed, new tabs included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._loads import STOP_SECONDS

if TYPE_CHECKING:
    from ._browser import Browser

__all__ = ["settle", "stop"]

_SLOW = 2.0
"""Margin in seconds for steps that should be quick."""


async def settle(browser: Browser) -> None:
    """Wait until the active tab, or the tab that it opens, is at rest.

    Raises:
        Refused: the page does not react, and was interrupted.
        BrowserGone: Chromium has ended.
    """
    settings = browser.settings
    await browser.adopted()
    if browser.tab.crashed or browser.tab.dialog is not None:
        return
    patience = settings.load_seconds + settings.settle_seconds + _SLOW
    for _ in range(2):
        tab = browser.tab
        await browser.guarded(tab.settle(), patience)
        if tab.loads.endless and not tab.loads.stopped:
            await stop(browser)
        if not (browser.tab.opening and await browser.announced(_SLOW)):
            break


async def stop(browser: Browser) -> None:
    """Stop the active page, which navigates without end, until the agent acts.

    Raises:
        Refused: the page does not react, and was interrupted.
        BrowserGone: Chromium has ended.
    """
    browser.note("navigation", "the page navigated without end; it was stopped")
    await browser.guarded(browser.tab.loads.stop(), STOP_SECONDS)

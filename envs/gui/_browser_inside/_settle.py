"""Waiting until what an action set off has happened, new tabs included."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._browser import Browser

__all__ = ["settle"]

_SLOW = 2.0
"""Seconds of room for what must not take long by itself."""


async def settle(browser: Browser) -> None:
    """Let the active tab come to rest; if it opens another one, that one.

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
        await browser.guarded(
            browser.tab.settle(settings.settle_seconds, settings.load_seconds), patience
        )
        if not (browser.tab.opening and await browser.announced(_SLOW)):
            break

"""One tab: its page, its loads, and its events."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from ._loads import MOST_HOPS, Loads
from ._tree import Ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.async_api import CDPSession, ConsoleMessage, Dialog, Page, Request

    from ._browser import Settings

__all__ = ["Tab"]


_TURN = {
    "expression": "new Promise(done => setTimeout(() => {"
    " document.documentElement?.getBoundingClientRect(); setTimeout(done); }))",
    "awaitPromise": True,
}
"""Returns after the tasks that are already queued in the page, and after a layout: pictures that
only style sheets name are requested by it, and would otherwise begin to load during the look."""


class Tab:
    """A page and its debugging session.

    Args:
        page: Playwright's page.
        session: session of the debugging protocol.
        settings: time limits.
        note: called with the kind and text of an event for the next observation.
        certain: see :class:`Loads`.
    """

    def __init__(
        self,
        page: Page,
        session: CDPSession,
        settings: Settings,
        note: Callable[[str, str], None],
        certain: Callable[[str], bool],
    ) -> None:
        self.page = page
        self.session = session
        self.ids = Ids()
        self.broken = asyncio.Event()
        """Set when the page has crashed."""
        self.loads = Loads(
            page,
            session,
            seconds=settings.settle_seconds,
            load_seconds=settings.load_seconds,
            certain=certain,
        )
        self.settled = -1
        self.dialog: Dialog | None = None
        self.appeared = asyncio.Event()
        """Set while a dialog is open."""
        self.chooser: int | None = None
        """The file field that waits for files, as a node of the DOM."""
        self.opening = False
        """Whether this page is opening a tab that has not appeared yet."""
        self._note = note
        session.on("Page.frameNavigated", self._arrived)
        session.on("Page.windowOpen", self._opens)
        session.on("Page.fileChooserOpened", self._choose)
        page.on("requestfailed", self._failed)
        page.on("framenavigated", self._navigated)
        page.on("crash", self._crash)
        page.on("console", self._console)
        page.on("pageerror", lambda error: note("error", str(error)))

    def _failed(self, request: Request) -> None:
        if request.is_navigation_request():
            why = request.failure or "no reason"
            # A download also aborts its navigation, and is reported as a download.
            if "ERR_ABORTED" not in why:
                self._note("navigation", f"{request.url[:300]} could not be loaded: {why}")

    def _arrived(self, event: dict[str, Any]) -> None:
        """Handle a new document, not only a new address of the same one."""
        if "parentId" not in event["frame"]:
            self.ids.forget()

    def _opens(self, _: dict[str, Any]) -> None:
        self.opening = True

    def _navigated(self, frame: Any) -> None:
        if frame == self.page.main_frame:
            self.chooser = None

    def _crash(self, _: Page) -> None:
        self.broken.set()
        self.loads.crash()

    def _console(self, message: ConsoleMessage) -> None:
        self._note("console", f"{message.type}: {message.text}")

    def _choose(self, event: dict[str, Any]) -> None:
        self.chooser = event.get("backendNodeId")
        many = " (several files may be given)" if event["mode"] == "selectMultiple" else ""
        self._note("chooser", f"the page asks for a file{many}: give it one by an upload")

    @property
    def crashed(self) -> bool:
        """Whether the page has crashed."""
        return self.broken.is_set()

    @property
    def visits(self) -> int:
        """Number of documents that the main frame has loaded."""
        return self.loads.visits

    @property
    def restless(self) -> bool:
        """Whether a load is known to be in progress."""
        return self.opening or self.settled != self.visits or self.loads.left(urgent=True) > 0

    async def listen(self) -> None:
        """Wait for the events sent so far: the page delivers them before it answers."""
        await self._evaluate({"expression": "0"})

    async def _evaluate(self, expression: dict[str, Any]) -> None:
        with contextlib.suppress(Exception):  # the page may go while it is asked
            await self.loads.unless_moved(self.session.send("Runtime.evaluate", expression))

    async def settle(self) -> None:
        """Wait until the effects of an action have completed; see :class:`Loads`."""
        last = False
        for _ in range(MOST_HOPS):
            visits = self.visits
            if not self.loads.travelling:
                await self._turn()
            self.loads.end_input()
            waited = await self.loads.rest(self.appeared, self._turn)
            if self.loads.endless or self.crashed:
                break
            if self.loads.travelling and not self.appeared.is_set():
                # Its time is up, and Chromium does not show the page while it navigates.
                with contextlib.suppress(Exception):
                    await self.session.send("Page.stopLoading")
                self._note("navigation", "the page took too long to answer; loading was stopped")
                self.loads.travelling = False
            # What a new document does immediately is an effect of the action, too, and what a
            # script does with an answer: once, as some pages never stop.
            if visits == self.visits:
                if last or not waited:
                    break
                last = True
        self.settled = self.visits

    async def _turn(self) -> None:
        await self._evaluate(_TURN)

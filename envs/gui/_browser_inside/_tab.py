"""One tab: its page, what it loads, and what happened to it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from ._tree import Ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.async_api import CDPSession, ConsoleMessage, Dialog, Page, Request

__all__ = ["Tab"]

_ENDLESS = {"eventsource", "websocket", "media", "ping"}
_POLL = 0.005


class Tab:
    """A page with its debugging session.

    Args:
        page: Playwright's page.
        session: of the debugging protocol.
        note: takes an event for the next observation: its kind and text.
    """

    def __init__(self, page: Page, session: CDPSession, note: Callable[[str, str], None]) -> None:
        self.page = page
        self.session = session
        self.ids = Ids()
        self.broken = asyncio.Event()
        """Set when the page has crashed."""
        self.visits = 0
        """How often the main frame went to another document."""
        self.settled = -1
        self.dialog: Dialog | None = None
        self.appeared = asyncio.Event()
        """Set while a dialog is open."""
        self.chooser: int | None = None
        """The file field that waits for files, as a node of the DOM."""
        self.loading: set[Request] = set()
        self.requested = False
        """Whether the page has asked for a document whose request has not begun yet."""
        self.opening = False
        """Whether a tab that this page opens is not there yet."""
        self._note = note
        session.on("Page.frameNavigated", self._arrived)
        session.on("Page.windowOpen", self._opens)
        session.on("Page.frameScheduledNavigation", self._requests)
        session.on("Page.frameRequestedNavigation", self._requests)
        session.on("Page.fileChooserOpened", self._choose)
        page.on("request", self._began)
        page.on("requestfinished", self._finished)
        page.on("requestfailed", self._failed)
        page.on("framenavigated", self._navigated)
        page.on("crash", self._crash)
        page.on("console", self._console)
        page.on("pageerror", lambda error: note("error", str(error)))

    def _began(self, request: Request) -> None:
        if request.is_navigation_request():
            self.requested = False
        if request.resource_type not in _ENDLESS:
            self.loading.add(request)

    def _finished(self, request: Request) -> None:
        self.loading.discard(request)

    def _failed(self, request: Request) -> None:
        self.loading.discard(request)
        if request.is_navigation_request():
            why = request.failure or "no reason"
            # A download ends its navigation, too, and is told as what it is.
            if "ERR_ABORTED" not in why:
                self._note("navigation", f"{request.url[:300]} could not be loaded: {why}")

    def _arrived(self, event: dict[str, Any]) -> None:
        """A new document, not only a new address of the old one."""
        if "parentId" not in event["frame"]:
            self.ids.forget()
            self.visits += 1
            self.requested = False

    def _requests(self, _: dict[str, Any]) -> None:
        self.requested = True

    def _opens(self, _: dict[str, Any]) -> None:
        self.opening = True

    def _navigated(self, frame: Any) -> None:
        if frame == self.page.main_frame:
            self.chooser = None

    def _crash(self, _: Page) -> None:
        self.broken.set()
        self.loading.clear()

    def _console(self, message: ConsoleMessage) -> None:
        self._note("console", f"{message.type}: {message.text}")

    def _choose(self, event: dict[str, Any]) -> None:
        self.chooser = event.get("backendNodeId")
        many = " (several files may be given)" if event["mode"] == "selectMultiple" else ""
        self._note("chooser", f"the page asks for a file{many}: give it one by an upload")

    @property
    def crashed(self) -> bool:
        """Whether the page is gone for good."""
        return self.broken.is_set()

    @property
    def travelling(self) -> bool:
        """Whether a document is on its way."""
        return self.requested or any(one.is_navigation_request() for one in self.loading)

    @property
    def restless(self) -> bool:
        """Whether something is known to be going on."""
        return bool(self.loading) or self.travelling or self.opening or self.settled != self.visits

    async def listen(self) -> None:
        """Hear what the page has said so far: its events come before the answer."""
        with contextlib.suppress(Exception):  # the page may go while it is asked
            await self.session.send("Runtime.evaluate", {"expression": "0"})

    async def settle(self, seconds: float, load_seconds: float) -> None:
        """Wait until what an action set off has happened.

        Args:
            seconds: for what scripts load; what takes longer is not waited for.
            load_seconds: for a document that is on its way.
        """
        visits = self.settled
        with contextlib.suppress(Exception):  # the page may go while it is asked
            await self.session.send(
                "Runtime.evaluate",
                {"expression": "new Promise(done => setTimeout(done))", "awaitPromise": True},
            )
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while self.loading or self.requested:
            spent = loop.time() - begun
            limit = load_seconds if self.travelling and not self.requested else seconds
            if spent > limit or self.crashed or self.appeared.is_set():
                break
            await asyncio.sleep(_POLL)
        self.requested = False  # by now it is a request, or never will be
        self.settled = self.visits
        if visits == self.visits:
            return
        left = max(0.1, load_seconds - (loop.time() - begun))
        with contextlib.suppress(Exception):  # too slow a page is looked at as it is
            await self.page.wait_for_load_state("load", timeout=left * 1000)

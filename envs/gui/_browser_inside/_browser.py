"""The browser: started once, its tabs, dialogs, downloads, and what goes wrong with them."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ._scripts import CARET
from ._tab import Tab

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from playwright.async_api import BrowserContext, Dialog, Download, Page

__all__ = ["Browser", "BrowserGone", "Refused", "Settings"]

T = TypeVar("T")

FLAGS = [
    # The sandbox around the browser is the container: Chromium's own needs rights it lacks there.
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
MAX_TABS = 8
MAX_DOWNLOADS = 50
POLL = 0.005
MAX_EVENTS = 40
MAX_EVENT_CHARS = 500
CONSOLE = {"console", "error"}


class Refused(Exception):
    """What the agent asked for can't be done; it reads the text."""


class BrowserGone(Exception):
    """The browser does not run any more."""


@dataclass
class Settings:
    """How the browser is started and how patient the driver is."""

    width: int = 1280
    height: int = 720
    executable: str = "/usr/bin/chromium"
    downloads: str = "/work/downloads"
    hosts: dict[str, str] = field(default_factory=dict)
    """Names that lead elsewhere: ``{"shop.test": "127.0.0.1:8000"}``."""
    dialogs: str = "accept"
    action_seconds: float = 10.0
    load_seconds: float = 15.0
    settle_seconds: float = 2.0
    storage: dict[str, Any] | None = None
    flags: list[str] = field(default_factory=list)


class Browser:
    """One Chromium with one profile."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tabs: list[Tab] = []
        self.active = 0
        self.events: list[dict[str, str]] = []
        self.dropped = 0
        self.downloads = 0
        self.pointer: tuple[float, float] = (0.0, 0.0)
        self.context: BrowserContext
        self._opening: set[asyncio.Task[None]] = set()
        self._gone = asyncio.Event()

    async def start(self) -> str:
        """Launch it and return its version."""
        from playwright.async_api import async_playwright

        settings = self.settings
        self._playwright = await async_playwright().start()
        rules = ",".join(f"MAP {name} {to}" for name, to in settings.hosts.items())
        self._browser = await self._playwright.chromium.launch(
            executable_path=settings.executable,
            args=[*FLAGS, f"--host-resolver-rules={rules}", *settings.flags],
            handle_sigint=False,
            handle_sigterm=False,
        )
        self._browser.on("disconnected", lambda _: self._gone.set())
        self.context = await self._browser.new_context(
            viewport={"width": settings.width, "height": settings.height},
            accept_downloads=True,
            locale="en-US",
            timezone_id="UTC",
            reduced_motion="reduce",
            storage_state=settings.storage,
        )
        self.context.set_default_timeout(settings.action_seconds * 1000)
        await self.context.add_init_script(CARET)
        self.context.on("page", self._appeared)
        await self.new_tab()
        return str(self._browser.version)

    async def close(self) -> None:
        """End it."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._browser.close(), 10)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._playwright.stop(), 10)

    @property
    def tab(self) -> Tab:
        """The tab that is looked at."""
        return self.tabs[self.active]

    def note(self, kind: str, text: str) -> None:
        """Keep an event for the next observation; too many are counted only."""
        same_kind = [e for e in self.events if (e["kind"] in CONSOLE) == (kind in CONSOLE)]
        if len(same_kind) >= MAX_EVENTS:
            self.dropped += 1
            return
        self.events.append({"kind": kind, "text": text[:MAX_EVENT_CHARS]})

    # Tabs ---------------------------------------------------------------------------------

    async def new_tab(self) -> None:
        """Open an empty tab and go to it."""
        await self.context.new_page()
        await self._opened()

    def _appeared(self, page: Page) -> None:
        task = asyncio.ensure_future(self._adopt(page))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _adopt(self, page: Page) -> None:
        if len(self.tabs) >= MAX_TABS:
            self.note("tab", f"a page wanted to open tab {MAX_TABS + 1}; it was closed again")
            with contextlib.suppress(Exception):
                await page.close()
            return
        tab: Tab | None = None
        page.on("dialog", lambda dialog: self._dialog(tab, dialog))
        page.on("download", self._download)
        try:
            session = await self.context.new_cdp_session(page)
            await session.send("Page.enable")
            await session.send("Page.setInterceptFileChooserDialog", {"enabled": True})
        except Exception:  # noqa: BLE001 - boundary: closed by the page that had opened it
            return
        tab = Tab(page, session, self.note)
        page.on("close", lambda _: self._closed(tab))
        if page.is_closed():
            return
        for other in self.tabs:
            other.opening = False
        self.tabs.append(tab)
        self.active = len(self.tabs) - 1
        if len(self.tabs) > 1:
            self.note("tab", f"tab {self.active} was opened and is looked at")

    async def announced(self, seconds: float) -> bool:
        """Wait until a tab that the active page opens is looked at; return whether it came."""
        tab, loop = self.tab, asyncio.get_running_loop()
        until = loop.time() + seconds
        while tab.opening and loop.time() < until:  # noqa: ASYNC110 - with a deadline
            await asyncio.sleep(POLL)
        opened = tab is not self.tab
        tab.opening = False
        return opened

    async def adopted(self) -> None:
        """Wait until tabs that pages have opened are there; there is always one."""
        await self._opened()
        if not self.tabs:
            self.note("tab", "the last tab was closed; an empty one was opened")
            await self.new_tab()
        if not self.tabs:
            raise BrowserGone("Chromium opens no tab any more")

    async def _opened(self) -> None:
        while self._opening:
            await asyncio.wait(set(self._opening))

    def _closed(self, tab: Tab | None) -> None:
        if tab not in self.tabs:
            return
        at = self.tabs.index(tab)
        self.tabs.remove(tab)
        if self.active >= at and self.active > 0:
            self.active -= 1
        self.note("tab", f"tab {at} was closed")

    async def close_tab(self) -> None:
        """Close the tab that is looked at."""
        await self.tab.page.close()
        await self.adopted()

    async def focus_tab(self, index: int) -> None:
        """Look at another tab."""
        if not 0 <= index < len(self.tabs):
            raise Refused(f"there is no tab {index}; open are 0 to {len(self.tabs) - 1}")
        self.active = index
        await self.tab.page.bring_to_front()

    # Dialogs and downloads ----------------------------------------------------------------

    def _dialog(self, tab: Tab | None, dialog: Dialog) -> None:
        shown = f"{dialog.type}: {dialog.message[:300]}"
        if self.settings.dialogs == "ask" and tab is not None and dialog.type != "beforeunload":
            tab.dialog = dialog
            tab.appeared.set()
            return
        accept = self.settings.dialogs != "dismiss" or dialog.type == "beforeunload"
        self.note("dialog", f"{shown} ({'accepted' if accept else 'dismissed'})")
        task = asyncio.ensure_future(_answer(dialog, None, accept=accept))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def answer(self, text: str | None, *, accept: bool) -> None:
        """Answer the dialog that is open."""
        dialog, self.tab.dialog = self.tab.dialog, None
        self.tab.appeared.clear()
        if dialog is not None:
            self.note("dialog", f"{dialog.type} {'accepted' if accept else 'dismissed'}")
            await _answer(dialog, text, accept=accept)

    def _download(self, download: Download) -> None:
        task = asyncio.ensure_future(self._save(download))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _save(self, download: Download) -> None:
        self.downloads += 1
        if self.downloads > MAX_DOWNLOADS:
            self.note("download", f"there were {MAX_DOWNLOADS} already; it was cancelled")
            with contextlib.suppress(Exception):
                await download.cancel()
            return
        plain = re.sub(r"[^\w.() -]", "_", download.suggested_filename).strip(". ") or "download"
        folder = Path(self.settings.downloads)
        path, count = folder / plain[-100:], 1
        while path.exists():
            path, count = folder / f"{count}-{plain[-100:]}", count + 1
        try:
            async with asyncio.timeout(self.settings.load_seconds):
                await download.save_as(path)
        except Exception as error:  # noqa: BLE001 - boundary: the agent is told
            self.note("download", f"{plain} could not be downloaded: {first_line(error)}")
        else:
            self.note("download", f"{path} ({path.stat().st_size} bytes)")

    # What goes wrong ----------------------------------------------------------------------

    async def guarded(self, work: Coroutine[Any, Any, T], seconds: float) -> T | None:
        """Run something in the active tab until it ends, a dialog opens, or time is up.

        A page that is busy with itself is interrupted; one that does not react even then is
        replaced by an empty tab. Either is noted as an event.

        Returns:
            What the work returned; None if a dialog opened first.

        Raises:
            Refused: the page crashed, or did not react in time.
            BrowserGone: the browser has ended meanwhile.
        """
        tab = self.tab
        task = asyncio.ensure_future(work)
        others = [asyncio.ensure_future(e.wait()) for e in (tab.appeared, tab.broken, self._gone)]
        try:
            await asyncio.wait({task, *others}, timeout=seconds, return_when="FIRST_COMPLETED")
            if task.done():
                return task.result()
            if self._gone.is_set():
                raise BrowserGone("Chromium has ended")
            if tab.crashed:
                task.cancel()
                raise Refused("the page crashed")
            if tab.appeared.is_set():
                task.add_done_callback(_seen)
                return None
            await self._interrupt(tab, task)
            raise Refused(f"the page did not react within {seconds:g} s")
        finally:
            for other in others:
                other.cancel()

    async def _interrupt(self, tab: Tab, task: asyncio.Future[Any]) -> None:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(tab.session.send("Runtime.terminateExecution"), 2)
        await asyncio.wait({task}, timeout=2)
        if task.done():
            _seen(task)
            self.note("hang", "the page did not react; its script was stopped")
            return
        task.cancel()
        await self.replace(tab, "the page did not react; it was closed")

    async def replace(self, tab: Tab, why: str) -> None:
        """Put a new tab with the same address in place of a broken one."""
        url = tab.page.url
        tab.broken.set()
        self.note("hang" if "react" in why else "crash", why)
        at = self.tabs.index(tab) if tab in self.tabs else len(self.tabs)
        page = await self.context.new_page()
        await self._opened()
        fresh = next(one for one in self.tabs if one.page == page)
        fresh.ids.last = tab.ids.last
        self.tabs.remove(fresh)
        if tab in self.tabs:
            self.tabs.remove(tab)
        self.tabs.insert(min(at, len(self.tabs)), fresh)
        self.active = self.tabs.index(fresh)
        self.events = [e for e in self.events if e["kind"] != "tab"]
        closing = asyncio.ensure_future(_close(tab.page))
        closing.add_done_callback(_seen)
        if "crashed" in why and url.startswith("http"):
            with contextlib.suppress(Exception):
                await page.goto(url, timeout=self.settings.load_seconds * 1000)

    async def mend(self) -> None:
        """Load a page anew that has crashed."""
        if self._gone.is_set():
            raise BrowserGone("Chromium has ended")
        if self.tab.crashed:
            await self.replace(self.tab, "the page crashed; it was loaded anew")


async def _close(page: Page) -> None:
    with contextlib.suppress(Exception):
        await asyncio.wait_for(page.close(), 5)


async def _answer(dialog: Dialog, text: str | None, *, accept: bool) -> None:
    with contextlib.suppress(Exception):  # the page may have gone meanwhile
        if not accept:
            await dialog.dismiss()
        elif dialog.type == "prompt":
            await dialog.accept(dialog.default_value if text is None else text)
        else:
            await dialog.accept()


def _seen(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


def first_line(error: BaseException) -> str:
    """Return what an error says, without Playwright's log of calls."""
    text = str(error).strip().splitlines()
    return re.sub(r"^[\w.]+: ", "", text[0]) if text else type(error).__name__

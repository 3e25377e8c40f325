"""The browser: its start, tabs, dialogs, downloads, and their failures."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ._archive import Archive, BadArchive
from ._replay import Replay
from ._scripts import CARET, SEEDED
from ._tab import Tab

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from playwright.async_api import BrowserContext, Dialog, Download, Page

    from ._chromium import Chromium

__all__ = ["Browser", "BrowserGone", "Refused", "Settings", "first_line"]

T = TypeVar("T")

_MOBILE_AGENT = (
    "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/{}.0.0.0 Mobile Safari/537.36"
)
"""The user agent of Chrome on Android, which contains only the major version."""
MAX_TABS = 8
MAX_DOWNLOADS = 50
POLL = 0.005
MAX_EVENTS = 40
MAX_EVENT_CHARS = 500
CONSOLE = {"console", "error"}


class Refused(Exception):
    """The agent's request can't be executed; the message is returned to the agent."""


class BrowserGone(Exception):
    """The browser has exited."""


@dataclass
class Settings:
    """Settings of the browser, and time limits of the driver."""

    width: int = 1280
    height: int = 720
    executable: str = "/usr/bin/chromium"
    downloads: str = "/work/downloads"
    hosts: dict[str, str] = field(default_factory=dict)
    """Addresses of host names: ``{"shop.test": "127.0.0.1:8000"}``."""
    dialogs: str = "accept"
    action_seconds: float = 10.0
    load_seconds: float = 15.0
    settle_seconds: float = 1.0
    storage: dict[str, Any] | None = None
    locale: str = "en-US"
    timezone: str = "UTC"
    clock: str | None = None
    """The fixed time that pages read, in ISO form; the machine's time if None."""
    seed: int | None = None
    """Seed of the random numbers in pages; not seeded if None."""
    scale: float = 1.0
    """Device pixels per CSS pixel."""
    mobile: bool = False
    """Whether a mobile device is emulated: touch, mobile viewport and user agent."""
    user_agent: str | None = None
    """The user agent; if None, Chromium's default, or that of Chrome on Android if ``mobile``."""
    archive: str | None = None
    """A HAR from which requests are answered."""
    archive_ignore: list[str] = field(default_factory=list)
    """Query parameters that may differ from the recorded ones."""
    record: str | None = None
    """Where the traffic is recorded as a HAR; see :meth:`Browser.save_traffic`."""
    flags: list[str] = field(default_factory=list)


class Browser:
    """The browser of one session: a separate profile in a Chromium process.

    Args:
        chromium: the running Chromium.
        settings: the settings of the session.
    """

    def __init__(self, chromium: Chromium, settings: Settings) -> None:
        self.settings = settings
        self._chromium = chromium
        self.tabs: list[Tab] = []
        self.active = 0
        self.events: list[dict[str, str]] = []
        self.dropped = 0
        self.downloads = 0
        self.pointer: tuple[float, float] = (0.0, 0.0)
        self.context: BrowserContext
        self.replay: Replay | None = None
        self.served: Callable[[str], bool] = lambda _: False
        """Whether a host is served inside the sandbox."""
        self._recording = False
        self._opening: set[asyncio.Task[None]] = set()
        self._gone = chromium.gone

    @property
    def version(self) -> str:
        """The version of Chromium."""
        return self._chromium.version

    async def close(self) -> None:
        """Close the profile and its tabs; Chromium stays."""
        with contextlib.suppress(Exception):  # it may have ended already
            await self.context.close()

    async def start(self) -> None:
        """Open the profile and the first tab."""
        settings = self.settings
        agent = settings.user_agent
        if agent is None and settings.mobile:
            agent = _MOBILE_AGENT.format(self.version.partition(".")[0])
        self.context = await self._chromium.profile(
            viewport={"width": settings.width, "height": settings.height},
            accept_downloads=True,
            locale=settings.locale,
            timezone_id=settings.timezone,
            device_scale_factor=settings.scale,
            is_mobile=settings.mobile,
            has_touch=settings.mobile,
            user_agent=agent,
            reduced_motion="reduce",
            storage_state=settings.storage,
            # Requests of service workers can be neither intercepted nor recorded.
            service_workers="block" if settings.archive or settings.record else "allow",
        )
        if settings.archive is not None:
            self.replay = Replay(self._archive(settings), lambda host: self.served(host))
            await self.replay.attach(self.context)
        if settings.record is not None:
            await self.context.tracing.start_har(settings.record, content="embed")
            self._recording = True
        self.context.set_default_timeout(settings.action_seconds * 1000)
        await self.context.add_init_script(CARET)
        if settings.seed is not None:
            await self.context.add_init_script(f"({SEEDED})({settings.seed})")
        if settings.clock is not None:
            await self.context.clock.set_fixed_time(settings.clock)
        self.context.on("page", self._appeared)
        await self.new_tab()

    @staticmethod
    def _archive(settings: Settings) -> Archive:
        try:
            return Archive(Path(str(settings.archive)), settings.archive_ignore)
        except BadArchive as error:
            raise Refused(str(error)) from error

    async def save_traffic(self) -> str:
        """End the recording, write it, and return its path.

        Raises:
            Refused: nothing is recorded.
        """
        if not self._recording or self.settings.record is None:
            raise Refused("the traffic is not recorded")
        self._recording = False
        await self.context.tracing.stop_har()
        return self.settings.record

    @property
    def tab(self) -> Tab:
        """The active tab."""
        return self.tabs[self.active]

    def note(self, kind: str, text: str) -> None:
        """Record an event for the next observation; events beyond the limit are only counted."""
        same_kind = [e for e in self.events if (e["kind"] in CONSOLE) == (kind in CONSOLE)]
        if len(same_kind) >= MAX_EVENTS:
            self.dropped += 1
            return
        self.events.append({"kind": kind, "text": text[:MAX_EVENT_CHARS]})

    # Tabs ---------------------------------------------------------------------------------

    async def new_tab(self) -> None:
        """Open an empty tab and activate it.

        Raises:
            Refused: the maximum number of tabs is open.
        """
        if len(self.tabs) >= MAX_TABS:
            raise Refused(f"{MAX_TABS} tabs are open, which is the maximum; close one first")
        await self.context.new_page()
        await self._opened()

    def _appeared(self, page: Page) -> None:
        task = asyncio.ensure_future(self._adopt(page))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _adopt(self, page: Page) -> None:
        if len(self.tabs) >= MAX_TABS:
            await self._refuse(page)
            return
        tab: Tab | None = None
        page.on("dialog", lambda dialog: self._dialog(tab, dialog))
        page.on("download", self._download)
        try:
            session = await self.context.new_cdp_session(page)
            await session.send("Page.enable")
            await session.send("Page.setInterceptFileChooserDialog", {"enabled": True})
            if self.settings.scale != 1:
                # A scaled screenshot resets the emulation of every other session.
                await session.send("Emulation.setDeviceMetricsOverride", self._metrics())
            tab = Tab(page, session, self.settings, self.note, self._certain)
            await tab.loads.identify(session)
        except Exception:  # noqa: BLE001 - boundary: closed by the page that opened it
            self._none_opens()
            return
        page.on("close", lambda _: self._closed(tab))
        if page.is_closed():
            return
        if len(self.tabs) >= MAX_TABS:  # others were registered in the meantime
            await self._refuse(page)
            return
        self._none_opens()
        self.tabs.append(tab)
        self.active = len(self.tabs) - 1
        if len(self.tabs) > 1:
            self.note("tab", f"tab {self.active} was opened and is active")

    async def _refuse(self, page: Page) -> None:
        """Close a tab that a page opened when the maximum number was open."""
        self.note("tab", f"a page opened a new tab, but {MAX_TABS} were open; it was closed")
        self._none_opens()
        with contextlib.suppress(Exception):
            await page.close()

    def _certain(self, url: str) -> bool:
        """Whether the driver itself answers the requests for a URL."""
        return self.replay is not None or self.served(urlsplit(url).hostname or "")

    def _metrics(self) -> dict[str, Any]:
        size = {"width": self.settings.width, "height": self.settings.height}
        return {**size, "deviceScaleFactor": self.settings.scale, "mobile": self.settings.mobile}

    def _none_opens(self) -> None:
        for tab in self.tabs:
            tab.opening = False

    async def announced(self, seconds: float) -> bool:
        """Wait until the tab that the active page is opening is active; return whether it is."""
        tab, loop = self.tab, asyncio.get_running_loop()
        until = loop.time() + seconds
        while tab.opening and loop.time() < until:  # noqa: ASYNC110 - with a deadline
            await asyncio.sleep(POLL)
        opened = tab is not self.tab
        tab.opening = False
        return opened

    async def adopted(self) -> None:
        """Wait until tabs opened by pages are registered; open a tab if none is left."""
        await self._opened()
        if not self.tabs:
            self.note("tab", "the last tab was closed; an empty one was opened")
            await self.new_tab()
        if not self.tabs:
            raise BrowserGone("Chromium can't open a tab")

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
        """Close the active tab."""
        await self.tab.page.close()
        await self.adopted()

    async def focus_tab(self, index: int) -> None:
        """Activate another tab."""
        if not 0 <= index < len(self.tabs):
            raise Refused(f"there is no tab {index}; tabs 0 to {len(self.tabs) - 1} are open")
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
        """Accept or dismiss the open dialog."""
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
            self.note("download", f"cancelled: the maximum of {MAX_DOWNLOADS} is reached")
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
        except Exception as error:  # noqa: BLE001 - boundary: the agent reads it
            self.note("download", f"{plain} could not be downloaded: {first_line(error)}")
        else:
            self.note("download", f"{path} ({path.stat().st_size} bytes)")

    # Failures -----------------------------------------------------------------------------

    async def guarded(self, work: Coroutine[Any, Any, T], seconds: float) -> T | None:
        """Run a coroutine in the active tab until it ends, a dialog opens, or the time is up.

        The script of a page that does not respond in time is stopped; if the page still does not
        respond, it is replaced by an empty tab. Both are recorded as events.

        Returns:
            The result of the coroutine; None if a dialog opened first.

        Raises:
            Refused: the page crashed, or did not respond in time.
            BrowserGone: the browser exited in the meantime.
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
        """Replace a broken tab by a new one; reload the page if it crashed."""
        url = tab.page.url
        tab.broken.set()
        self.note("hang" if "react" in why else "crash", why)
        at = len(self.tabs)
        if tab in self.tabs:  # removed first, because the maximum number of tabs may be open
            at = self.tabs.index(tab)
            self.tabs.remove(tab)
            self.active = max(0, min(self.active, len(self.tabs) - 1))
        page = await self.context.new_page()
        await self._opened()
        fresh = next((one for one in self.tabs if one.page == page), None)
        if fresh is None:  # a page opened tabs in the meantime, or the new tab was closed
            await self.adopted()
            return
        fresh.ids.last = tab.ids.last
        self.tabs.remove(fresh)
        self.tabs.insert(min(at, len(self.tabs)), fresh)
        self.active = self.tabs.index(fresh)
        self.events = [e for e in self.events if e["kind"] != "tab"]
        closing = asyncio.ensure_future(_close(tab.page))
        closing.add_done_callback(_seen)
        if "crashed" in why and url.startswith("http"):
            with contextlib.suppress(Exception):
                await page.goto(url, timeout=self.settings.load_seconds * 1000)

    @property
    def ended(self) -> bool:
        """Whether Chromium has exited."""
        return self._gone.is_set()

    async def has_ended(self) -> bool:
        """Return whether Chromium has exited; waits up to 1 s, as connections may fail first."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), 1)
        return self.ended

    async def mend(self) -> None:
        """Replace the active tab and reload its page if it has crashed."""
        if self._gone.is_set():
            raise BrowserGone("Chromium has ended")
        if self.tab.crashed:
            await self.replace(self.tab, "the page crashed; it was reloaded")


async def _close(page: Page) -> None:
    with contextlib.suppress(Exception):
        await asyncio.wait_for(page.close(), 5)


async def _answer(dialog: Dialog, text: str | None, *, accept: bool) -> None:
    with contextlib.suppress(Exception):  # the page may have closed in the meantime
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
    """Return the message of an error without Playwright's call log."""
    text = str(error).strip().splitlines()
    return re.sub(r"^[\w.]+: ", "", text[0]) if text else type(error).__name__

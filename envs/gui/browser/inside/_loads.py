"""The loads of a tab, and how long an observation should wait for them.

Chromium reports when a frame starts to navigate and when it has stopped loading; requests are
followed until they are answered. A page without either is not waited for. Every load has its own
deadline, counted from its start: a load that misses it delays one step only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from playwright.async_api import CDPSession, Page, Request

__all__ = ["MOST_HOPS", "STOP_SECONDS", "Loads"]

T = TypeVar("T")

_BLOCKING = {"document", "stylesheet", "script", "image", "font", "xhr", "fetch"}
_SAME_DOCUMENT = {"sameDocument", "historySameDocument"}
_SOON = 0.1
"""Seconds within which a requested navigation starts, if it starts at all."""
_BODY = 0.1
"""Seconds after the headers: a body that the page does not read never completes."""
_BACKGROUND = 0.15
"""Seconds for requests that were not answered before, or that are repeated continually."""
_REPEATED, _WINDOW = 8, 3.0
MOST_HOPS = 8
"""Documents that a page may lead to by itself, in one step or within :data:`_WINDOW` seconds,
before it counts as one that never stops."""
_MOST_ADDRESSES = 40
"""Addresses that a page may give itself within :data:`_WINDOW` seconds, without a new document and
without input: a page may reflect every key in its address."""
_STOP = 1.0
"""Seconds for a stopped page to settle."""
STOP_SECONDS = 2 * _STOP + 4.0
"""Deadline of :meth:`Loads.stop`."""
_STOPPED, _LONGEST_STOPPED = 2.0, 8.0
"""Seconds for the first and for a later try of an observation of a stopped page."""
_DOCUMENTS = {"patterns": [{"urlPattern": "*", "resourceType": "Document"}]}


@dataclass(slots=True)
class _Waiting:
    key: str
    since: float
    patience: float
    answered: float | None = None

    def until(self) -> float:
        if self.answered is not None:
            return min(self.answered + _BODY, self.since + self.patience)
        return self.since + self.patience


def _never_stops(times: deque[float]) -> bool:
    """Whether the queue is full and its entries are from a short period."""
    return len(times) == times.maxlen and times[-1] - times[0] < _WINDOW


class Loads:
    """Follows the navigations and requests of one page.

    Args:
        page: Playwright's page.
        session: its debugging session, with the domain ``Page`` enabled.
        seconds: limit for a request, or for a frame inside the page.
        load_seconds: limit for a document of the main frame, and for an answer that is certain.
        certain: whether the driver itself answers the requests for a URL: then nothing but a slow
            machine delays the answer.
    """

    def __init__(
        self,
        page: Page,
        session: CDPSession,
        *,
        seconds: float,
        load_seconds: float,
        certain: Callable[[str], bool],
    ) -> None:
        self.visits = 0
        """Number of documents that the main frame has loaded."""
        self.main = ""
        """The id of the main frame."""
        self._seconds, self._load_seconds = seconds, load_seconds
        self._certain = certain
        self._frames: dict[str, float] = {}
        self._scheduled: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._requests: dict[Request, _Waiting] = {}
        self._unanswered: set[str] = set()
        self._times: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_REPEATED))
        self.travelling = False
        """Whether the page is navigating to a document that has not been committed yet.

        Until then, Chromium does not respond to requests about the page.
        """
        self._hops = 0
        self._hopped: deque[float] = deque(maxlen=MOST_HOPS + 1)
        """Times of documents that the page loaded by itself, without an action of the agent."""
        self._addresses: deque[float] = deque(maxlen=_MOST_ADDRESSES)
        """Times of address changes of the main frame within the same document, since the last
        input of the agent."""
        self._input = False
        self._inner: defaultdict[str, deque[float]] = defaultdict(
            lambda: deque(maxlen=MOST_HOPS + 1)
        )
        """Times of documents in frames inside the page."""
        self.stopped = False
        """Whether the page was stopped because it navigated without end."""
        self._moved = asyncio.Event()
        """Set when a new document arrives in the main frame."""
        self._session = session
        self._refusing: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._now = asyncio.get_running_loop().time
        session.on("Page.frameScheduledNavigation", self._schedules)
        session.on("Page.frameRequestedNavigation", self._asks)
        session.on("Page.frameClearedScheduledNavigation", self._clears)
        session.on("Page.frameStartedNavigating", self._navigates)
        session.on("Page.navigatedWithinDocument", self._readdresses)
        session.on("Page.frameStoppedLoading", self._stops)
        session.on("Page.frameDetached", self._stops)
        session.on("Page.frameNavigated", self._arrives)
        session.on("Fetch.requestPaused", self._pauses)
        page.on("request", self._begins)
        page.on("response", lambda response: self._answers(response.request))
        page.on("requestfinished", self._ends)
        page.on("requestfailed", self._ends)

    async def identify(self, session: CDPSession) -> None:
        """Ask which frame is the main one."""
        tree = await session.send("Page.getFrameTree")
        self.main = str(tree["frameTree"]["frame"]["id"])

    # Navigations ------------------------------------------------------------------------------

    def _schedules(self, event: dict[str, Any]) -> None:
        scripted = str(event.get("url", "")).startswith("javascript:")
        if not scripted and event.get("delay", 0) <= _SOON:
            self._scheduled[event["frameId"]] = self._now()

    def _clears(self, event: dict[str, Any]) -> None:
        self._scheduled.pop(event["frameId"], None)
        self._changed.set()

    def _asks(self, event: dict[str, Any]) -> None:
        if event.get("disposition", "currentTab") == "currentTab":
            self._asked[event["frameId"]] = self._now()

    def _navigates(self, event: dict[str, Any]) -> None:
        self._drop(event["frameId"])
        if event.get("navigationType") not in _SAME_DOCUMENT:
            self._frames[event["frameId"]] = self._now()
            self.travelling |= event["frameId"] == self.main

    def _readdresses(self, event: dict[str, Any]) -> None:
        """Count a new address of the document of the main frame."""
        if event["frameId"] == self.main and not self._input:
            self._addresses.append(self._now())
            if self.endless:
                self._moved.set()

    def _stops(self, event: dict[str, Any]) -> None:
        self._drop(event["frameId"])
        self._frames.pop(event["frameId"], None)
        self.travelling &= event["frameId"] != self.main
        self._changed.set()

    def _drop(self, frame: str) -> None:
        self._scheduled.pop(frame, None)
        self._asked.pop(frame, None)

    def _arrives(self, event: dict[str, Any]) -> None:
        """Count a new document of the main frame, not only a new address of the old one."""
        if "parentId" in event["frame"]:
            self._inner[event["frame"]["id"]].append(self._now())
            return
        self.main = event["frame"]["id"]
        self.travelling = False
        self._scheduled.clear()
        self._asked.clear()
        self._requests.clear()
        self._inner.clear()
        self._frames = {name: at for name, at in self._frames.items() if name == self.main}
        self.visits += 1
        self._hops += 1
        if self._hops > 1:
            self._hopped.append(self._now())
        self._moved.set()
        self._changed.set()

    # Requests ---------------------------------------------------------------------------------

    def _begins(self, request: Request) -> None:
        if request.resource_type not in _BLOCKING or request.is_navigation_request():
            return
        now, key = self._now(), f"{request.method} {request.url.partition('?')[0]}"
        times = self._times[key]
        repeated = len(times) == _REPEATED and now - times[0] < _WINDOW
        times.append(now)
        if repeated or key in self._unanswered:
            patience = _BACKGROUND
        else:
            patience = self._load_seconds if self._certain(request.url) else self._seconds
        self._requests[request] = _Waiting(key, now, patience)

    def _answers(self, request: Request) -> None:
        found = self._requests.get(request)
        if found is not None:
            found.answered = self._now()
            self._unanswered.discard(found.key)
            self._changed.set()

    def _ends(self, request: Request) -> None:
        self._requests.pop(request, None)
        self._changed.set()

    # Waiting ----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop a page that navigates without end, and wait until it is at rest.

        Scripts are disabled; a document that arrives then is the last one of most pages. Requests
        for further documents are aborted, since a page can refresh itself without a script.
        """
        self.stopped = True
        await self._session.send("Emulation.setScriptExecutionDisabled", {"value": True})
        await self.come_to_rest()
        await self._session.send("Fetch.enable", _DOCUMENTS)
        await self.come_to_rest()

    async def come_to_rest(self) -> bool:
        """Wait for a short time until no frame navigates; return whether that is so."""
        until = self._now() + _STOP
        while (moving := bool(self._frames or self._asked or self._scheduled)) and (
            self._now() < until
        ):
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _SOON)
        return not moving

    def _pauses(self, event: dict[str, Any]) -> None:
        main = event["frameId"] == self.main
        task = asyncio.ensure_future(self._refuse(event["requestId"], main=main))
        self._refusing.add(task)
        task.add_done_callback(self._refusing.discard)

    async def _refuse(self, request: str, *, main: bool) -> None:
        """Abort a request of the main frame while the page is stopped; continue others."""
        from playwright.async_api import Error

        with contextlib.suppress(Error):  # the page may have been closed in the meantime
            if main and self.stopped:
                why = {"requestId": request, "errorReason": "Aborted"}
                await self._session.send("Fetch.failRequest", why)
            else:
                await self._session.send("Fetch.continueRequest", {"requestId": request})

    async def resume(self) -> None:
        """Allow scripts and documents again, before the agent acts."""
        self._hops = 0
        self._addresses.clear()
        if self.stopped:
            self.stopped = False
            self._hopped.clear()
            await self._session.send("Fetch.disable")
            await self._session.send("Emulation.setScriptExecutionDisabled", {"value": False})

    def begin_input(self) -> None:
        """Count no address changes until :meth:`end_input`: the agent or the host causes them."""
        self._input = True

    def end_input(self) -> None:
        """Count address changes again. The page's events up to now must have arrived."""
        self._input = False

    @property
    def hopping(self) -> bool:
        """Whether the page loaded documents by itself a moment ago."""
        return self.stopped or bool(self._hopped and self._now() - self._hopped[-1] < _WINDOW)

    @property
    def endless(self) -> bool:
        """Whether the page has navigated more often than any wait should follow."""
        if self.stopped or self._hops > MOST_HOPS:
            return True
        return _never_stops(self._hopped) or _never_stops(self._addresses)

    async def unless_moved(self, work: Coroutine[Any, Any, T], tries: int = 0) -> T | None:
        """Return the result of a coroutine on the page; None if it was cancelled.

        It is cancelled when another document arrives, because Chromium may never answer a request
        about the previous one; and on a stopped page, whose screenshot may never be taken, after a
        short time, which is longer after some earlier tries.
        """
        self._moved.clear()
        task, moved = asyncio.ensure_future(work), asyncio.ensure_future(self._moved.wait())
        try:
            seconds = min(_STOPPED * (1 + tries), _LONGEST_STOPPED) if self.stopped else None
            await asyncio.wait({task, moved}, timeout=seconds, return_when="FIRST_COMPLETED")
            return task.result() if task.done() else None
        finally:
            task.cancel()
            moved.cancel()

    def left(self, begun: float | None = None, *, urgent: bool = False) -> float:
        """Return the seconds left to wait; 0 if nothing is loading.

        Args:
            begun: when the wait began; later requests and frames are waited for no longer than
                those that began with it.
            urgent: ignore requests in the background.
        """
        now = self._now()
        if self.endless:
            return 0.0
        start = now if begun is None else begun
        # A page may request navigations continually, such as to another hash of itself.
        asked = (*self._scheduled.values(), *self._asked.values())
        ends = [min(at + _SOON, start + self._seconds) for at in asked]
        noisy = {name for name, times in self._inner.items() if _never_stops(times)}
        for name, at in self._frames.items():
            if name != self.main:
                ends.append(min(at, start) + self._seconds)
            elif noisy and not self.travelling:
                ends.append(at + self._seconds)  # its load event waits for its frames
            else:
                ends.append(at + self._load_seconds)
        for request in list(self._requests):
            waiting = self._requests[request]
            end = waiting.until()
            if end <= now:
                if waiting.answered is None:
                    self._unanswered.add(waiting.key)
                del self._requests[request]
                continue
            if not (urgent and waiting.patience == _BACKGROUND):
                ends.append(min(end, start + waiting.patience))
        return max([0.0, *(end - now for end in ends)])

    async def rest(self, interrupted: asyncio.Event, turn: Callable[[], Awaitable[None]]) -> bool:
        """Return once nothing is loading, or the time of the remaining loads is up.

        Args:
            interrupted: set if a dialog opens, which blocks the page.
            turn: waits until the page has done what is queued in it. On a slow machine, a load may
                have ended within its time without having been reported yet.

        Returns:
            Whether anything was loading.
        """
        begun, waited = self._now(), False
        while not interrupted.is_set() and (left := self.left(begun)) > 0:
            waited = True
            self._changed.clear()
            waits = [asyncio.ensure_future(e.wait()) for e in (self._changed, interrupted)]
            done, _ = await asyncio.wait(waits, timeout=left, return_when="FIRST_COMPLETED")
            for one in waits:
                one.cancel()
            if not (done or self.travelling):
                await turn()
        return waited

    def crash(self) -> None:
        """Forget all loads: the page has crashed."""
        self.travelling = False
        self._scheduled.clear()
        self._asked.clear()
        self._frames.clear()
        self._requests.clear()
        self._changed.set()

"""Requests of the library, handled one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _scripts as scripts
from ._act import perform
from ._browser import Browser, BrowserGone, Refused, Settings, first_line
from ._chromium import Chromium
from ._look import look
from ._mail import Mail
from ._serve import Files, Pages, Server, Site
from ._settle import settle
from ._shop import Shop
from ._wizard import Wizard

if TYPE_CHECKING:
    from ._tab import Tab

__all__ = ["Driver"]

_SITES: dict[str, type[Site]] = {"shop": Shop, "mail": Mail, "wizard": Wizard}
_MINIWOB = "miniwob"
STATE_SECONDS = 15.0
_REHEARSAL = "rehearsal.test"
_REHEARSED = "<title>Rehearsal</title><h1>Page</h1><a href=/>link</a><button>One</button>"
_REHEARSED_LOOK = {
    "screenshot": {"format": "jpeg", "quality": 70, "width": 1280, "height": 720},
    "tree": 1000,
    "boxes": True,
    "html": 0,
}
READY_SECONDS = 30.0
"""Seconds for a MiniWoB++ page to become ready."""


class Driver:
    """The browser, the sites of the task, and the requests to them."""

    def __init__(self) -> None:
        self.browser: Browser | None = None
        self.server: Server | None = None
        self.chromium: Chromium | None = None
        self.episode: dict[str, Any] | None = None
        self._standby: Browser | None = None
        """A browser that was opened ahead, for a session with the same settings."""
        self._stage: tuple[Tab, int] | None = None
        """Tab of the episode, and its count of documents when the episode began."""

    async def answer(self, op: str, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request.

        Raises:
            Refused: the request is invalid in this state.
            BrowserGone: Chromium has ended.
        """
        if op == "launch":
            return await self._launch(request)
        if op == "start":
            return await self._start(request)
        if self.browser is None:
            raise Refused("the browser was not started")
        work = getattr(self, f"_op_{op}", None)
        if work is None:
            raise Refused(f"unknown operation {op!r}")
        found: dict[str, Any] = await work(self.browser, request)
        return found

    async def _launch(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open a browser ahead: a ``start`` with the same settings takes it over.

        A page is opened and looked at in another profile first, because the first time is slow.
        ``settings``: fields of :class:`Settings`; ``seconds``: deadline.
        """
        self.server = Server({_REHEARSAL: Pages({"index.html": _REHEARSED})})
        settings = self._settings(request)
        async with asyncio.timeout(request["seconds"]):
            chromium = await self._chromium_for(settings)
            rehearsal = Browser(chromium, replace(settings, archive=None, record=None))
            await rehearsal.start()
            await perform(rehearsal, {"do": "go_to", "url": f"http://{_REHEARSAL}/"})
            await look(rehearsal, _REHEARSED_LOOK)
            await rehearsal.close()
            self._standby = Browser(chromium, settings)
            await self._standby.start()
        return {"version": chromium.version}

    def _settings(self, request: dict[str, Any]) -> Settings:
        assert self.server is not None
        settings = Settings(**request["settings"])
        settings.hosts = {"*.test": self.server.address, **settings.hosts}
        return settings

    async def _browser_for(self, settings: Settings) -> Browser:
        """Return an open browser: the one that was opened ahead if it fits, else a new one."""
        standby, self._standby = self._standby, None
        chromium = await self._chromium_for(settings)
        if standby is not None and not standby.ended:
            if standby.settings == settings:
                return standby
            await standby.close()
        browser = Browser(chromium, settings)
        await browser.start()
        return browser

    async def _chromium_for(self, settings: Settings) -> Chromium:
        """Return a Chromium for these settings: the running one if it fits, else a new one."""
        wanted = (settings.executable, settings.hosts, settings.flags)
        if self.chromium is not None:
            if self.chromium.launch == wanted and not self.chromium.gone.is_set():
                return self.chromium
            await self.chromium.close()
        self.chromium = Chromium(*wanted)
        await self.chromium.start()
        return self.chromium

    async def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start the session: sites and browser.

        ``settings``: fields of :class:`Settings`; ``sites``: names of our own sites; ``pages``:
        files of the task, or None; ``miniwob``: folder of its HTML, or None; ``folders``: served
        under their names; ``state``: of sites.
        """
        sites: dict[str, Site] = {f"{name}.test": _SITES[name]() for name in request["sites"]}
        if request.get("pages"):
            sites["pages.test"] = Pages(request["pages"])
        if request.get("miniwob"):
            sites[f"{_MINIWOB}.test"] = Files(Path(request["miniwob"]))
        for folder in request.get("folders") or ():
            sites[f"{Path(folder).name}.test"] = Files(Path(folder))
        for name, state in (request.get("state") or {}).items():
            sites[name].state = state
        if self.server is None:
            self.server = Server({})
        self.server.sites = sites
        async with asyncio.timeout(request.get("seconds", 60)):
            self.browser = await self._browser_for(self._settings(request))
        self.browser.served = self._serves
        return {"version": self.browser.version}

    def _serves(self, host: str) -> bool:
        """Whether requests for a host are answered inside the sandbox."""
        assert self.server is not None
        assert self.browser is not None
        return host in self.server.sites or host in self.browser.settings.hosts

    async def close(self) -> None:
        """End the browser."""
        if self.chromium is not None:
            await self.chromium.close()

    async def _op_act(self, browser: Browser, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out ``actions`` until one fails or ends the task, then ``look``."""
        results = []
        times = []
        pictured = bool(request["look"].get("screenshot"))
        for action in request["actions"]:
            last = action is request["actions"][-1]
            begun = time.perf_counter()
            # A screenshot waits for the next frame anyway, and is repeated if the page changes.
            result = await perform(browser, action, at_rest=not (last and pictured))
            times.append(round((time.perf_counter() - begun) * 1000, 2))
            results.append(result)
            if not result["ok"] or (not last and await self._over()):
                break
        begun = time.perf_counter()
        seen = await self._seen(browser, request["look"])
        looked = round((time.perf_counter() - begun) * 1000, 2)
        return {
            "results": results,
            "look": seen,
            "task": await self._task(),
            "ms": {"actions": times, "look": looked},
        }

    async def _op_look(self, browser: Browser, request: dict[str, Any]) -> dict[str, Any]:
        return {"look": await self._seen(browser, request["look"]), "task": await self._task()}

    @staticmethod
    async def _seen(browser: Browser, wanted: dict[str, Any]) -> dict[str, Any]:
        """Look; a page that can't be shown is replaced, so that it can't end the attempt."""
        try:
            return await look(browser, wanted)
        except BrowserGone:
            raise
        except Exception as error:  # boundary: a page can make any call of Playwright fail
            if await browser.has_ended():
                raise BrowserGone("Chromium has ended") from error
            await browser.replace(browser.tab, f"the page could not be shown: {first_line(error)}")
            return await look(browser, wanted)

    async def _op_open(self, browser: Browser, request: dict[str, Any]) -> dict[str, Any]:
        """Go to ``url``; not an action of the agent, so that an error page is refused."""
        result = await perform(browser, {"do": "go_to", "url": request["url"]})
        if not result["ok"]:
            raise Refused(f"{request['url']} can't be opened: {result['error']}")
        tab = browser.tab
        asked = tab.session.send("Runtime.evaluate", {"expression": scripts.HTTP_STATUS})
        said = await browser.guarded(asked, STATE_SECONDS)
        status = int((said or {}).get("result", {}).get("value") or 0)
        if status >= 400:
            raise Refused(f"{request['url']} can't be opened: the server answered {status}")
        return {}

    async def _op_miniwob(self, browser: Browser, request: dict[str, Any]) -> dict[str, Any]:
        """Open the task ``name`` with ``seed`` and a limit of ``seconds``."""
        url = f"http://{_MINIWOB}.test/miniwob/{request['name']}.html"
        page = browser.tab.page
        await browser.tab.loads.resume()  # a task is not a document that the last one led to
        answer = await page.goto(url)
        if answer is None or not answer.ok:
            raise Refused(f"there is no MiniWoB++ task {request['name']!r}")
        await page.wait_for_function("() => typeof core !== 'undefined' && core.cover_div !== null")
        await page.evaluate(scripts.MINIWOB_START, [request["seed"], request["seconds"] * 1000])
        await page.wait_for_function("() => WOB_TASK_READY !== false", timeout=READY_SECONDS * 1000)
        await page.add_style_tag(
            content="#reward-display, #sync-task-cover, #click-canvas, #query { "
            "display: none !important; }"
            if request.get("hide_query")
            else "#reward-display, #sync-task-cover, #click-canvas { display: none !important; }"
        )
        # What the episode has just built may load pictures, and elements have no size without.
        await settle(browser)
        self._stage = (browser.tab, browser.tab.visits)
        self.episode = await page.evaluate(scripts.MINIWOB_STATE)
        return {"task": self.episode}

    async def _over(self) -> bool:
        task = await self._task()
        return bool(task and task.get("done"))

    async def _task(self) -> dict[str, Any] | None:
        """Return the state of the task: MiniWoB++'s episode, or the states of the sites."""
        from playwright.async_api import Error

        browser = self.browser
        assert browser is not None
        if self.episode is None or self._stage is None:
            return {"sites": self._states()}
        if self.episode["done"]:
            return self.episode
        tab, visits = self._stage
        lost = "the browser ended" if browser.ended else ""
        lost = lost or ("the page crashed or stopped responding" if tab.crashed else "")
        if not lost and (tab not in browser.tabs or tab.visits != visits):
            lost = "left the page"
        if lost:
            self.episode |= {"done": True, "reward": 0.0, "raw": 0.0, "reason": lost}
        elif tab.dialog is None:
            with contextlib.suppress(Error, Refused, BrowserGone):
                now = await browser.guarded(tab.page.evaluate(scripts.MINIWOB_STATE), STATE_SECONDS)
                self.episode = now or self.episode
        return self.episode

    def _states(self) -> dict[str, Any]:
        assert self.server is not None
        with self.server.lock:
            return copy.deepcopy(
                {name: site.state for name, site in self.server.sites.items() if site.state}
            )

    async def _op_task(self, browser: Browser, request: dict[str, Any]) -> dict[str, Any]:
        del browser, request
        return {"task": await self._task()}

    async def _op_save_traffic(self, browser: Browser, request: dict[str, Any]) -> dict[str, Any]:
        del request
        return {"path": await browser.save_traffic()}

    async def _op_storage(self, browser: Browser, request: dict[str, Any]) -> dict[str, Any]:
        """Return what a fork needs: cookies, local storage, sites, tabs, scroll positions."""
        scroll = "() => [scrollX, scrollY]"
        seen = await look(browser, request["look"])
        return {
            "storage": await browser.context.storage_state(indexed_db=True),
            "sites": self._states(),
            "tabs": [tab.page.url for tab in browser.tabs],
            "active": browser.active,
            "scroll": [await tab.page.evaluate(scroll) for tab in browser.tabs],
            "last": [tab.ids.last for tab in browser.tabs],
            "replay": browser.replay.archive.progress() if browser.replay else None,
            "look": seen,
        }

    async def _op_adopt(self, browser: Browser, request: dict[str, Any]) -> dict[str, Any]:
        """Open the ``tabs`` of a snapshot and assign the element ids of the snapshot."""
        if browser.replay and request["replay"]:
            browser.replay.archive.resume(request["replay"])
        while len(browser.tabs) < len(request["tabs"]):
            await browser.new_tab()
        for index, url in enumerate(request["tabs"]):
            browser.active = index
            if url != "about:blank":
                await perform(browser, {"do": "go_to", "url": url})
            await browser.tab.page.evaluate("([x, y]) => scrollTo(x, y)", request["scroll"][index])
        browser.active = request["active"]
        await browser.tab.page.bring_to_front()
        browser.events.clear()
        seen = await look(browser, {**request["look"], "order": True})
        tab, wanted = browser.tab, request["order"]
        if seen.get("digest") == request["digest"] and len(seen["order"]) == len(wanted):
            nodes = [tab.ids.nodes[name] for name in seen["order"]]
            tab.ids.by_node.clear()
            tab.ids.nodes.clear()
            for name, node in zip(wanted, nodes, strict=True):
                tab.ids.bind(name, node)
            for index, one in enumerate(browser.tabs):
                one.ids.last = request["last"][index]
        if browser.replay and request["replay"]:  # the tabs have requested their pages again
            browser.replay.archive.resume(request["replay"])
            browser.replay.report()
        return {"digest": seen.get("digest"), "url": browser.tab.page.url}

    async def _op_evaluate(self, browser: Browser, request: dict[str, Any]) -> dict[str, Any]:
        """Evaluate a verifier's expression on a new page, or on the active one.

        ``url``: where, or None; ``expression``: JavaScript.
        """
        page, loads = browser.tab.page, browser.tab.loads
        if request.get("url"):
            page = await browser.context.new_page()
            await browser.adopted()
            await page.goto(request["url"])
        loads.begin_input()
        try:
            return {"value": await page.evaluate(request["expression"])}
        finally:
            loads.end_input()
            if request.get("url"):
                await page.close()
                await browser.adopted()

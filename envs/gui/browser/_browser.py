"""A browser in a sandbox."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias
from weakref import WeakKeyDictionary

from trajgym.envs.gui._driver import Driver
from trajgym.envs.gui._errors import GuiDied
from trajgym.envs.gui.actions._types import Size, to_wire
from trajgym.envs.gui.browser._look import look_of
from trajgym.envs.gui.browser._sandbox import FOLDERS_INSIDE, INSIDE, MINIWOB_INSIDE
from trajgym.trajectory._internal import AsyncClosing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.gui._picture import PictureForm
    from trajgym.envs.gui.actions._types import Action
    from trajgym.envs.gui.browser._look import BrowserLook
    from trajgym.envs.sandbox import Sandbox

__all__ = ["BROWSER_SIZE", "Browser", "Dialogs", "launch_browser"]

BROWSER_SIZE = Size(1280, 720)
Dialogs: TypeAlias = Literal["accept", "dismiss", "ask"]

_HAR_INSIDE = "/tmp/trajgym-replayed.har"  # noqa: S108 - in a sandbox of its own
_RECORD_INSIDE = "/tmp/trajgym-recorded.har"  # noqa: S108
_MOST_HAR_BYTES = 512 << 20
_PYTHON = "/opt/trajgym/venv/bin/python"
_START_SECONDS = 120.0
_ASK_SECONDS = 120.0
_ACTION_SECONDS = 60.0
_TREE_CHARS = 12_000


class Browser(AsyncClosing):
    """Chromium in a sandbox, driven from inside it, without a network.

    Every method raises :class:`ScreenEnded` if the browser or its driver ended or does not answer
    in time.

    Args:
        sandbox: of :func:`browser_spec`; not closed with the browser.
        size: size of the page, in pixels.
        dialogs: what happens to ``alert`` and other dialogs: ``accept``, ``dismiss``, or ``ask``:
            they stay open until the agent presses Enter or Escape.
        sites: built-in sites that are served: ``shop``, ``mail``, ``wizard``, at
            ``http://shop.test/`` and so on.
        pages: files that are served at ``http://pages.test/``.
        hosts: addresses of other host names: ``{"wiki.example": "10.0.0.5:8000"}``.
        action_seconds: limit for one action; a page that is busy longer is interrupted.
        load_seconds: limit for loading a page; the observation then shows what has loaded.
        settle_seconds: time limit for the responses to what a loaded page requests.
        locale: locale of the pages, such as ``de-DE``.
        timezone: time zone of the pages, such as ``Europe/Berlin``.
        clock: the fixed time that pages read, in ISO form; timers still run. The machine's time if
            None.
        seed: seed of the random numbers in pages, applied to each document; None sets no seed.
        device_scale: device pixels per CSS pixel.
        mobile: whether to emulate a mobile device: touch events, a mobile viewport, and the user
            agent of Chrome on Android. Left clicks are taps.
        user_agent: what pages see instead of the browser's own.
        har: a recording (HAR) of this machine from which every request is answered, in place of
            the network; see :class:`BrowserRecord`. Requests that were not recorded fail, and are
            reported in :attr:`BrowserLook.unmatched`. Service workers are blocked.
        har_ignore: names of query parameters that may differ from the recorded ones; ``*`` for
            all.
        record_har: whether the traffic is recorded, until :meth:`save_har`. Service workers are
            blocked.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        size: Size = BROWSER_SIZE,
        dialogs: Dialogs = "accept",
        sites: Sequence[str] = (),
        pages: Mapping[str, str] | None = None,
        hosts: Mapping[str, str] | None = None,
        action_seconds: float = 10.0,
        load_seconds: float = 15.0,
        settle_seconds: float = 1.0,
        locale: str = "en-US",
        timezone: str = "UTC",
        clock: str | None = None,
        seed: int | None = None,
        device_scale: float = 1.0,
        mobile: bool = False,
        user_agent: str | None = None,
        har: str | Path | None = None,
        har_ignore: Sequence[str] = (),
        record_har: bool = False,
    ) -> None:
        self.size = size
        self._sandbox = sandbox
        self._har = None if har is None else Path(har)
        self._settings: dict[str, Any] = {
            "width": size.width,
            "height": size.height,
            "dialogs": dialogs,
            "hosts": dict(hosts or {}),
            "action_seconds": action_seconds,
            "load_seconds": load_seconds,
            "settle_seconds": settle_seconds,
            "locale": locale,
            "timezone": timezone,
            "clock": clock,
            "seed": seed,
            "scale": device_scale,
            "mobile": mobile,
            "user_agent": user_agent,
            "archive": None if har is None else _HAR_INSIDE,
            "archive_ignore": list(har_ignore),
            "record": _RECORD_INSIDE if record_har else None,
        }
        self._sites = list(sites)
        self._pages = dict(pages or {})
        self._driver: Driver | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(
        self,
        *,
        storage: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Start driver, sites and browser.

        Args:
            storage: initial cookies and local storage, as returned by :meth:`storage`.
            state: initial states of the sites, by name.
        """
        self._driver = _launched.pop(self._sandbox, None) or await _driver(self._sandbox)
        readonly = self._sandbox.spec.readonly
        miniwob = MINIWOB_INSIDE if MINIWOB_INSIDE in readonly else None
        folders = [path for path in readonly if path.startswith(f"{FOLDERS_INSIDE}/")]
        try:
            await self._upload_har()
            await self.ask(
                "start",
                _START_SECONDS,
                settings={**self._settings, "storage": storage},
                sites=self._sites,
                pages=self._pages,
                miniwob=miniwob,
                folders=folders,
                state=state,
                seconds=_START_SECONDS - 10,
            )
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Kill driver and browser. Idempotent."""
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.close()

    async def act(
        self,
        actions: Sequence[Action | dict[str, Any]],
        picture: PictureForm | None = None,
        *,
        boxes: bool = False,
        tree_chars: int = _TREE_CHARS,
        html_chars: int = 0,
    ) -> BrowserLook:
        """Execute actions in order, let the page settle, and look.

        The first action that fails or ends the task ends the batch; earlier ones remain in effect.

        Args:
            actions: with points in pixels of the screen; or their wire form.
            picture: how to show the page; no picture if None.
            boxes: whether to report the positions of the elements, and which are covered.
            tree_chars: limit of the text of the elements.
            html_chars: limit of the pruned HTML; 0 for none.
        """
        wire = [one if isinstance(one, dict) else to_wire(one) for one in actions]
        waits = sum(float(action.get("seconds") or 0) for action in wire)
        answer = await self.ask(
            "act",
            _ASK_SECONDS + waits + _ACTION_SECONDS * len(wire),
            actions=wire,
            look=self._wanted(picture, boxes=boxes, tree_chars=tree_chars, html_chars=html_chars),
        )
        return look_of(answer, picture)

    async def look(
        self,
        picture: PictureForm | None = None,
        *,
        boxes: bool = False,
        tree_chars: int = _TREE_CHARS,
        html_chars: int = 0,
    ) -> BrowserLook:
        """Look without acting; see :meth:`act`."""
        wanted = self._wanted(picture, boxes=boxes, tree_chars=tree_chars, html_chars=html_chars)
        return look_of(await self.ask("look", look=wanted), picture)

    async def goto(self, url: str) -> None:
        """Open an address on behalf of the environment, not of the agent.

        Raises:
            BadAction: it can't be opened.
        """
        await self.ask("open", url=url)

    async def start_miniwob(self, name: str, seed: int, seconds: float, *, hide_query: bool) -> str:
        """Start the single episode of a MiniWoB++ task and return its instruction.

        Raises:
            BadAction: there is no such task.
        """
        answer = await self.ask(
            "miniwob", name=name, seed=seed, seconds=seconds, hide_query=hide_query
        )
        return str(answer["task"]["utterance"])

    async def task(self) -> dict[str, Any]:
        """Return the state of the task: ``sites`` by name, or MiniWoB++'s episode."""
        found: dict[str, Any] = (await self.ask("task"))["task"]
        return found

    async def storage(self) -> dict[str, Any]:
        """Return what is needed to restore this browser, as JSON values."""
        answer = await self.ask("storage", look=self._wanted(None, order=True))
        return {key: value for key, value in answer.items() if key not in {"id", "ok"}}

    async def adopt(self, kept: Mapping[str, Any]) -> str:
        """Open the tabs that :meth:`storage` returned; return the digest of the page.

        If it equals the digest of the snapshot, the elements have the same ids as there.
        """
        seen = kept["look"]
        answer = await self.ask(
            "adopt",
            _ASK_SECONDS + _ACTION_SECONDS * len(kept["tabs"]),
            tabs=kept["tabs"],
            active=kept["active"],
            scroll=kept["scroll"],
            last=kept["last"],
            order=seen.get("order", []),
            digest=seen.get("digest"),
            replay=kept.get("replay"),
            look=self._wanted(None),
        )
        return str(answer["digest"])

    async def save_har(self, path: str | Path) -> None:
        """End the recording of the traffic, and write it to a file of this machine.

        A HAR contains everything that was sent: cookies, tokens and passwords too.

        Raises:
            BadAction: the traffic is not recorded, or was saved before.
            SandboxFileError: it is larger than 512 MiB.
        """
        inside = (await self.ask("save_traffic"))["path"]
        data = await self._sandbox.read_file(inside, limit=_MOST_HAR_BYTES)
        await asyncio.to_thread(_write, Path(path), data)

    async def _upload_har(self) -> None:
        if self._har is not None:
            data = await asyncio.to_thread(self._har.read_bytes)
            await self._sandbox.write_file(_HAR_INSIDE, data)

    async def evaluate(self, expression: str, url: str | None = None) -> Any:
        """Evaluate a verifier's JavaScript on the active page, or at ``url`` in a tab of its own.

        Raises:
            BadAction: the page can't be opened.
        """
        return (await self.ask("evaluate", expression=expression, url=url))["value"]

    def _wanted(
        self,
        picture: PictureForm | None,
        *,
        boxes: bool = False,
        order: bool = False,
        tree_chars: int = _TREE_CHARS,
        html_chars: int = 0,
    ) -> dict[str, Any]:
        shot = None
        if picture is not None:
            width, height = picture.size or self.size
            form = {"format": picture.form, "quality": picture.quality, "area": picture.area}
            shot = {**form, "width": width, "height": height, "fast": True}
        common = {"tree": tree_chars, "html": html_chars, "boxes": boxes, "order": order}
        return {"screenshot": shot, **common}

    async def ask(
        self, op: str, deadline: float = _ASK_SECONDS, /, **request: Any
    ) -> dict[str, Any]:
        """Send one request to the driver and return its answer.

        Raises:
            BadAction: it was refused.
            ScreenEnded: the browser or its driver ended, or did not answer in time.
            GuiDied: the driver failed.
        """
        if self._driver is None:
            raise GuiDied("the browser is closed")
        return await self._driver.ask({"op": op, **request}, deadline)


_launched: WeakKeyDictionary[Sandbox, Driver] = WeakKeyDictionary()
"""Drivers of sandboxes in which Chromium was launched ahead, until a :class:`Browser` opens."""


async def launch_browser(sandbox: Sandbox, **options: Any) -> None:
    """Start driver, Chromium and an empty tab in a sandbox before it is known who uses it.

    The next :class:`Browser` that opens in this sandbox takes them over. If it has other options,
    it opens a new profile in the running Chromium; other ``hosts`` start Chromium again. Pass it
    to :meth:`WarmPool.prepare`.

    Args:
        sandbox: of :func:`browser_spec`.
        **options: those of the :class:`Browser` to come.

    Raises:
        ScreenEnded: Chromium did not start in time.
        GuiDied: the driver failed.
    """
    browser = Browser(sandbox, **options)
    browser._driver = driver = await _driver(sandbox)
    try:
        await browser._upload_har()
        await browser.ask(
            "launch",
            _START_SECONDS,
            settings={**browser._settings, "storage": None},
            seconds=_START_SECONDS - 10,
        )
    except BaseException:
        await browser.close()
        raise
    _launched[sandbox] = driver


async def _driver(sandbox: Sandbox) -> Driver:
    command = [_PYTHON, "-m", "trajgym_driver"]
    return await Driver.start(sandbox, command, "the browser", env={"PYTHONPATH": INSIDE})


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)

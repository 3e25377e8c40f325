"""A browser in a sandbox, and the requests to its driver."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias
from weakref import WeakKeyDictionary

from trajgym.envs import Image
from trajgym.envs.gui._errors import BadAction, GuiDied, ScreenEnded
from trajgym.envs.gui.actions._types import Size, to_wire
from trajgym.envs.sandbox import Limits, SandboxDied, SandboxError, SandboxSpec
from trajgym.trajectory._internal import AsyncClosing, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.gui._picture import PictureForm
    from trajgym.envs.gui.actions._types import Action
    from trajgym.envs.sandbox import Sandbox, Stream

__all__ = [
    "BROWSER_IMAGE",
    "BROWSER_SIZE",
    "Browser",
    "BrowserElement",
    "BrowserEvent",
    "BrowserLook",
    "Dialogs",
    "browser_spec",
    "launch_browser",
    "miniwob_html",
]

BROWSER_IMAGE = "trajgym/browser:bookworm"
BROWSER_SIZE = Size(1280, 720)
Dialogs: TypeAlias = Literal["accept", "dismiss", "ask"]

_SOURCE = Path(__file__).with_name("inside")
_INSIDE = "/opt/trajgym/driver"
_MINIWOB_INSIDE = "/opt/trajgym/miniwob"
_FOLDERS_INSIDE = "/opt/trajgym/sites"
_HAR_INSIDE = "/tmp/trajgym-replayed.har"  # noqa: S108 - in a sandbox of its own
_RECORD_INSIDE = "/tmp/trajgym-recorded.har"  # noqa: S108
_MOST_HAR_BYTES = 512 << 20
_PYTHON = "/opt/trajgym/venv/bin/python"
_MIB = 1 << 20
_LINE_BYTES = 64 << 20
_START_SECONDS = 120.0
_ASK_SECONDS = 120.0
_ACTION_SECONDS = 60.0
_TREE_CHARS = 12_000


class BrowserEvent(NamedTuple):
    """An event in the browser since the last look."""

    kind: str
    """``dialog``, ``tab``, ``download``, ``chooser``, ``navigation``, ``crash``, ``hang``, or
    ``console`` and ``error`` of a page."""
    text: str


class BrowserElement(NamedTuple):
    """An element in the viewport."""

    id: str
    role: str
    name: str
    box: tuple[float, float, float, float]
    """Left, top, width and height in pixels of the screen."""
    clickable: bool
    """Whether it reacts to clicks, judging by its role, its listeners, or its cursor."""
    covered: bool
    """Whether a click on its middle would hit something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserLook:
    """An observation of the browser, and the results of the preceding actions.

    Attributes:
        picture: screenshot of the page, if one was requested and no dialog is open.
        tree: the elements, one per line, with their ids; limited in length.
        elements: the listed elements in the viewport, with their positions, if requested.
        html: the page as HTML without scripts, styles and most attributes, if requested; elements
            have their ids as the attribute ``bid``.
        url: URL of the active tab.
        title: title of its page.
        tabs: addresses of all tabs.
        active: index of the active tab.
        focused: id of the focused element, or empty.
        dialog: kind and text of the open dialog, or None.
        events: events since the last look; limited in number and length.
        dropped: number of events that were dropped.
        pointer: position of the pointer, in pixels of the screen.
        unmatched: requests since the last look that the recording has no response to, as method
            and address; at most 20. Only if traffic is replayed.
        unmatched_count: how many there were.
        digest: hash of the address and the elements without their ids; equal for equal pages.
        task: state of the task: the states of the sites, or the episode of MiniWoB++.
        errors: one for each action that was tried; empty if it succeeded.
        found: whether the element existed, for each action that named one.
        mark: changes with the observation.
    """

    picture: Image | None
    tree: str
    elements: tuple[BrowserElement, ...]
    html: str
    url: str
    title: str
    tabs: tuple[str, ...]
    active: int
    focused: str
    dialog: tuple[str, str] | None
    events: tuple[BrowserEvent, ...]
    dropped: int
    pointer: tuple[float, float]
    digest: str
    task: Mapping[str, Any]
    errors: tuple[str, ...] = ()
    found: tuple[bool, ...] = ()
    unmatched: tuple[str, ...] = ()
    unmatched_count: int = 0
    mark: str = field(default="", compare=False)

    @property
    def boxes(self) -> dict[str, tuple[float, float, float, float]]:
        """Boxes of the clickable elements that nothing covers, by id."""
        return {one.id: one.box for one in self.elements if one.clickable and not one.covered}


def miniwob_html() -> Path:
    """Return the folder of MiniWoB++'s pages.

    Raises:
        MissingExtra: the package ``miniwob`` is not installed.
    """
    from importlib.util import find_spec

    found = find_spec("miniwob")  # importing it would load Selenium
    if found is None or found.origin is None:
        raise MissingExtra("miniwob", "gui")
    return Path(found.origin).with_name("html")


def browser_spec(
    *,
    image: str = BROWSER_IMAGE,
    memory: int = 1536,
    network: bool = False,
    miniwob: bool = False,
    allow: Sequence[str] = (),
    folders: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> SandboxSpec:
    """Return the sandbox that a :class:`Browser` needs.

    Args:
        image: with Chromium and Playwright; ``scripts/gui-image.sh`` makes it.
        memory: MiB for everything inside.
        network: whether pages may reach what the host can reach.
        miniwob: whether MiniWoB++'s pages are mounted.
        allow: the addresses that pages may reach without a network; see :class:`SandboxSpec`.
        folders: of this machine that are served at ``http://NAME.test/``, ``{name: path}``.
        labels: see :class:`SandboxSpec`.
    """
    readonly = {f"{_INSIDE}/trajgym_driver": _SOURCE}
    if miniwob:
        readonly[_MINIWOB_INSIDE] = miniwob_html()
    for name, path in (folders or {}).items():
        readonly[f"{_FOLDERS_INSIDE}/{name}"] = Path(path).resolve()
    return SandboxSpec(
        image=image,
        readonly=readonly,
        network=network,
        allow=list(allow),
        labels=labels or {},
        limits=Limits(memory=memory * _MIB, pids=1024, cpus=2.0),
    )


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
        self._stream: Stream | None = None
        self._asked = 0
        self._turn = asyncio.Lock()

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
        self._stream = _launched.pop(self._sandbox, None) or await _driver(self._sandbox)
        readonly = self._sandbox.spec.readonly
        miniwob = _MINIWOB_INSIDE if _MINIWOB_INSIDE in readonly else None
        folders = [path for path in readonly if path.startswith(f"{_FOLDERS_INSIDE}/")]
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
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

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
        return _look(answer, picture)

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
        return _look(await self.ask("look", look=wanted), picture)

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
        async with self._turn:
            stream = self._stream
            if stream is None:
                raise GuiDied("the browser is closed")
            self._asked += 1
            stream.send(json.dumps({"id": self._asked, "op": op, **request}).encode())
            try:
                async with asyncio.timeout(deadline):
                    answer = await self._answer(stream, self._asked)
            except TimeoutError:
                raise ScreenEnded(
                    f"the browser did not answer {op!r} within {deadline:g} s"
                ) from None
            except SandboxDied:
                raise  # no fault of the page or the agent: it must not be scored
            except (SandboxError, ValueError) as error:
                raise ScreenEnded(f"the browser's driver is gone: {error}") from error
        if answer.get("ok"):
            return answer
        text = str(answer.get("error"))
        if answer.get("kind") == "refused":
            raise BadAction(text)
        if answer.get("kind") == "gone":
            raise ScreenEnded(text)
        raise GuiDied(f"the browser failed at {op!r}: {text}\n{answer.get('trace', '')}".strip())

    @staticmethod
    async def _answer(stream: Stream, asked: int) -> dict[str, Any]:
        """Return the answer to the newest request; those of cancelled ones are dropped."""
        while True:
            answer = json.loads(await stream.read())
            if isinstance(answer, dict) and answer.get("id") == asked:
                return answer


_launched: WeakKeyDictionary[Sandbox, Stream] = WeakKeyDictionary()
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
    browser._stream = await _driver(sandbox)
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
    _launched[sandbox] = browser._stream


async def _driver(sandbox: Sandbox) -> Stream:
    command = [_PYTHON, "-m", "trajgym_driver"]
    return await sandbox.stream(command, env={"PYTHONPATH": _INSIDE}, limit=_LINE_BYTES)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _element(found: Mapping[str, Any]) -> BrowserElement:
    x, y, width, height = found["box"]
    return BrowserElement(**{**found, "box": (x, y, width, height)})


def _look(answer: Mapping[str, Any], picture: PictureForm | None) -> BrowserLook:
    seen = answer["look"]
    image, mark = None, hashlib.sha256(f"{seen.get('digest')}{seen['url']}".encode())
    if picture is not None and seen.get("screenshot"):
        data = base64.b64decode(seen["screenshot"])
        mark.update(data)
        image = Image(data, f"image/{picture.form}")
    dialog = seen.get("dialog")
    results = answer.get("results", ())
    x, y = seen["pointer"]
    return BrowserLook(
        picture=image,
        tree=seen.get("tree", ""),
        elements=tuple(_element(one) for one in seen.get("elements") or ()),
        html=seen.get("html", ""),
        url=seen["url"],
        title=seen.get("title", ""),
        tabs=tuple(seen["tabs"]),
        active=seen["active"],
        focused=seen.get("focused", ""),
        dialog=(dialog["type"], dialog["message"]) if dialog else None,
        events=tuple(BrowserEvent(e["kind"], e["text"]) for e in seen["events"]),
        dropped=seen["dropped"],
        pointer=(x, y),
        digest=seen.get("digest") or "",
        task=answer.get("task") or {},
        errors=tuple(result.get("error", "") for result in results),
        found=tuple(result["found"] for result in results if "found" in result),
        unmatched=tuple((seen.get("unmatched") or {}).get("requests", ())),
        unmatched_count=int((seen.get("unmatched") or {}).get("count", 0)),
        mark=mark.hexdigest(),
    )

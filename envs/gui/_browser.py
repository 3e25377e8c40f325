"""A browser in a sandbox: its driver, spoken to in JSON lines."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

from trajgym.envs import Image
from trajgym.envs.gui._actions import Size, to_wire
from trajgym.envs.gui._errors import BadAction, GuiDied
from trajgym.envs.sandbox import Limits, SandboxError, SandboxSpec
from trajgym.trajectory import AsyncClosing, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.gui._actions import Action
    from trajgym.envs.gui._desktop import PictureForm
    from trajgym.envs.sandbox import Sandbox, Stream

__all__ = [
    "BROWSER_IMAGE",
    "BROWSER_SIZE",
    "Browser",
    "BrowserEvent",
    "BrowserLook",
    "Dialogs",
    "browser_spec",
    "miniwob_html",
]

BROWSER_IMAGE = "trajgym/browser:bookworm"
BROWSER_SIZE = Size(1280, 720)
Dialogs: TypeAlias = Literal["accept", "dismiss", "ask"]

_SOURCE = Path(__file__).with_name("_browser_inside")
_INSIDE = "/opt/trajgym/driver"
_MINIWOB_INSIDE = "/opt/trajgym/miniwob"
_PYTHON = "/opt/trajgym/venv/bin/python"
_MIB = 1 << 20
_LINE_BYTES = 64 << 20
_START_SECONDS = 120.0
_ASK_SECONDS = 120.0
_ACTION_SECONDS = 60.0
_TREE_CHARS = 12_000


class BrowserEvent(NamedTuple):
    """Something that happened in the browser since the last look."""

    kind: str
    """``dialog``, ``tab``, ``download``, ``chooser``, ``navigation``, ``crash``, ``hang``, or
    ``console`` and ``error`` of a page."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserLook:
    """What the browser shows, and what came of the actions before.

    Attributes:
        picture: of the page, if one was asked for and no dialog lies over it.
        tree: the elements, one a line, with their ids; bounded.
        boxes: ``{id: (x, y, width, height)}`` in pixels of the screen, if asked for.
        url: of the active tab.
        title: of its page.
        tabs: addresses of all tabs.
        active: which tab is looked at.
        focused: id of the element with the focus; empty if none has it.
        dialog: kind and text of the dialog that waits for an answer, or None.
        events: what happened since the last look; bounded in number and length.
        dropped: how many more events there were.
        pointer: where it is, in pixels of the screen.
        digest: of address and elements without their ids: equal pages, equal digests.
        task: how the task stands inside: the states of the sites, or the episode of MiniWoB++.
        errors: one for each action that was tried; empty if it was carried out.
        found: whether the element was there, for each action that named one.
        mark: changes with what is seen.
    """

    picture: Image | None
    tree: str
    boxes: Mapping[str, tuple[float, float, float, float]]
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
    mark: str = field(default="", compare=False)


def miniwob_html() -> Path:
    """Return the folder of MiniWoB++'s pages.

    Raises:
        MissingExtra: the package ``miniwob`` is not installed.
    """
    from importlib.util import find_spec

    found = find_spec("miniwob")  # its own import would load Selenium
    if found is None or found.origin is None:
        raise MissingExtra("miniwob", "gui")
    return Path(found.origin).with_name("html")


def browser_spec(
    *,
    image: str = BROWSER_IMAGE,
    memory: int = 1536,
    network: bool = False,
    miniwob: bool = False,
    labels: Mapping[str, str] | None = None,
) -> SandboxSpec:
    """Return the sandbox that a :class:`Browser` needs.

    Args:
        image: with Chromium and Playwright; ``scripts/gui-image.sh`` makes it.
        memory: MiB for everything inside.
        network: whether pages may reach what the host can reach.
        miniwob: whether MiniWoB++'s pages go in.
        labels: see :class:`SandboxSpec`.
    """
    readonly = {f"{_INSIDE}/trajgym_driver": _SOURCE}
    if miniwob:
        readonly[_MINIWOB_INSIDE] = miniwob_html()
    return SandboxSpec(
        image=image,
        readonly=readonly,
        network=network,
        labels=labels or {},
        limits=Limits(memory=memory * _MIB, pids=1024, cpus=2.0),
    )


class Browser(AsyncClosing):
    """Chromium in a sandbox, driven from inside: nothing needs a network.

    Every method raises :class:`GuiDied` if browser or driver are gone or do not answer in time.

    Args:
        sandbox: of :func:`browser_spec`; not closed with the browser.
        size: of the page, in pixels.
        dialogs: what happens to ``alert`` and its kin: ``accept``, ``dismiss``, or ``ask``: they
            stay open until the agent presses Enter or Escape.
        sites: of the library's own sites that are served: ``shop``, ``mail``, ``wizard``, at
            ``http://shop.test/`` and so on.
        pages: files that are served at ``http://pages.test/``.
        hosts: where other names lead: ``{"wiki.example": "10.0.0.5:8000"}``.
        action_seconds: most that one action may take; a page that is busy longer is interrupted.
        load_seconds: most that a page may take to load; it is looked at as it is then.
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
    ) -> None:
        self.size = size
        self._sandbox = sandbox
        self._settings: dict[str, Any] = {
            "width": size.width,
            "height": size.height,
            "dialogs": dialogs,
            "hosts": dict(hosts or {}),
            "action_seconds": action_seconds,
            "load_seconds": load_seconds,
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
            storage: cookies and local storage to begin with, as :meth:`storage` gave them.
            state: of the sites, likewise.
        """
        self._stream = await self._sandbox.stream(
            [_PYTHON, "-m", "trajgym_driver"], env={"PYTHONPATH": _INSIDE}, limit=_LINE_BYTES
        )
        miniwob = _MINIWOB_INSIDE if _MINIWOB_INSIDE in self._sandbox.spec.readonly else None
        try:
            await self.ask(
                "start",
                _START_SECONDS,
                settings={**self._settings, "storage": storage},
                sites=self._sites,
                pages=self._pages,
                miniwob=miniwob,
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
    ) -> BrowserLook:
        """Carry out actions in order, let the page settle, and look.

        The first that fails or ends the task ends the row; what came before it stays done.

        Args:
            actions: with points in pixels of the screen; or their wire form.
            picture: how to show the page; no picture if None.
            boxes: whether to say where the elements are.
            tree_chars: bound of the text of the elements.
        """
        wire = [one if isinstance(one, dict) else to_wire(one) for one in actions]
        waits = sum(float(action.get("seconds") or 0) for action in wire)
        answer = await self.ask(
            "act",
            _ASK_SECONDS + waits + _ACTION_SECONDS * len(wire),
            actions=wire,
            look=self._wanted(picture, boxes=boxes, tree_chars=tree_chars),
        )
        return _look(answer, picture)

    async def look(
        self,
        picture: PictureForm | None = None,
        *,
        boxes: bool = False,
        tree_chars: int = _TREE_CHARS,
    ) -> BrowserLook:
        """Look without doing anything; see :meth:`act`."""
        wanted = self._wanted(picture, boxes=boxes, tree_chars=tree_chars)
        return _look(await self.ask("look", look=wanted), picture)

    async def goto(self, url: str) -> None:
        """Open an address, as the environment and not as the agent.

        Raises:
            BadAction: it can't be opened.
        """
        await self.ask("open", url=url)

    async def start_miniwob(self, name: str, seed: int, seconds: float, *, hide_query: bool) -> str:
        """Begin the one episode of a MiniWoB++ task and return what it asks for.

        Raises:
            BadAction: there is no such task.
        """
        answer = await self.ask(
            "miniwob", name=name, seed=seed, seconds=seconds, hide_query=hide_query
        )
        return str(answer["task"]["utterance"])

    async def task(self) -> dict[str, Any]:
        """Return how the task stands: ``sites`` by name, or MiniWoB++'s episode."""
        found: dict[str, Any] = (await self.ask("task"))["task"]
        return found

    async def storage(self) -> dict[str, Any]:
        """Return what a copy of this browser can be made from, as JSON values."""
        answer = await self.ask("storage", look=self._wanted(None, order=True))
        return {key: value for key, value in answer.items() if key not in {"id", "ok"}}

    async def adopt(self, kept: Mapping[str, Any]) -> str:
        """Open the tabs that :meth:`storage` told of; return the digest of what is seen then.

        If it is the digest of that moment, elements have the ids that they had there.
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
            look=self._wanted(None),
        )
        return str(answer["digest"])

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
    ) -> dict[str, Any]:
        shot = None
        if picture is not None:
            width, height = picture.size or self.size
            form = {"format": picture.form, "quality": picture.quality}
            shot = {**form, "width": width, "height": height, "fast": True}
        common = {"tree": tree_chars, "title": True}
        return {"screenshot": shot, **common, "boxes": boxes, "order": order}

    async def ask(
        self, op: str, deadline: float = _ASK_SECONDS, /, **request: Any
    ) -> dict[str, Any]:
        """Send one request to the driver and return its answer.

        Raises:
            BadAction: it was refused.
            GuiDied: the browser or its driver are gone, or there was no answer in time.
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
                raise GuiDied(f"the browser did not answer {op!r} in {deadline:g} s") from None
            except (SandboxError, ValueError) as error:
                raise GuiDied(f"the browser's driver is gone: {error}") from error
        if answer.get("ok"):
            return answer
        said = str(answer.get("error"))
        if answer.get("kind") == "refused":
            raise BadAction(said)
        raise GuiDied(f"the browser failed at {op!r}: {said}\n{answer.get('trace', '')}".strip())

    @staticmethod
    async def _answer(stream: Stream, asked: int) -> dict[str, Any]:
        """Return the answer to the newest request; those of cancelled ones are dropped."""
        while True:
            answer = json.loads(await stream.read())
            if isinstance(answer, dict) and answer.get("id") == asked:
                return answer


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
        boxes={name: tuple(box) for name, box in (seen.get("boxes") or {}).items()},
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
        mark=mark.hexdigest(),
    )

"""A desktop in a sandbox."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from trajgym.envs import Image
from trajgym.envs.gui._driver import Driver
from trajgym.envs.gui._errors import GuiDied, ScreenEnded
from trajgym.envs.gui.actions._types import NOTCH, Size, to_wire
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import AsyncClosing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.gui._picture import PictureForm
    from trajgym.envs.gui.actions._types import Action
    from trajgym.envs.sandbox import Sandbox

__all__ = [
    "DESKTOP_SIZE",
    "TREE_SECONDS",
    "Desktop",
    "DesktopElement",
    "DesktopLook",
    "DesktopWindow",
    "check_tree_seconds",
]

DESKTOP_SIZE = Size(1280, 720)
_PACKAGE = "trajgym_desktop"
_SOURCE = Path(__file__).with_name("inside")
_START_SECONDS = 90.0
_ANSWER_SECONDS = 30.0
TREE_SECONDS = 5.0
_MOST_TREE_SECONDS = 15.0
assert NOTCH == 100  # the driver uses the same limit


def check_tree_seconds(given: float) -> float:
    """Return a limit for reading elements.

    Raises:
        InvalidInput: it is not possible.
    """
    if not 0 < given <= _MOST_TREE_SECONDS:
        raise InvalidInput(
            f"tree_seconds {given}: use more than 0 and at most {_MOST_TREE_SECONDS:g}"
        )
    return given


class DesktopWindow(NamedTuple):
    """A window, as reported by the window manager."""

    title: str
    application: str
    """Its class, such as ``Mousepad``."""
    pid: int
    place: tuple[int, int, int, int]
    """Left, top, width and height of its inside, in pixels of the screen."""
    active: bool


class DesktopElement(NamedTuple):
    """An element of an application's accessibility tree."""

    depth: int
    """How deep it is in the tree of the listed elements; windows have 0."""
    role: str
    """AT-SPI's name, such as ``push button``."""
    name: str
    box: tuple[int, int, int, int]
    """Left, top, width and height in pixels of the screen."""
    states: tuple[str, ...] = ()
    """Among ``active``, ``focused``, ``checked``, ``selected``, ``expanded``, ``pressed``,
    ``editable`` and ``disabled``."""
    text: str = ""
    """Its text or value; limited in length."""


class DesktopLook(NamedTuple):
    """The state of the screen, and the results of the preceding actions."""

    picture: Image | None
    pointer: tuple[int, int]
    windows: tuple[DesktopWindow, ...]
    mark: int
    """A number that changes with what the screen shows."""
    done: int = 0
    """How many actions were executed."""
    refused: str = ""
    """Why the next action was not executed; empty if all were."""
    changed: bool = False
    """Whether the screen has changed since the last look."""
    clipboard: str | None = None
    """The text on the clipboard if an action asked for it; at most 20,000 characters."""
    elements: tuple[DesktopElement, ...] = ()
    """The visible elements of all windows, if the desktop was opened with ``tree``."""
    elements_cut: str = ""
    """Why these are not all elements; empty if they are."""

    @property
    def active(self) -> DesktopWindow | None:
        """The window with the focus."""
        return next((window for window in self.windows if window.active), None)


class Desktop(AsyncClosing):
    """An X server, a window manager and applications in a sandbox. Use it with ``async with``.

    Pictures are taken by mss and input goes through XTEST inside; nothing needs a network.

    Args:
        sandbox: with the image ``trajgym/desktop:bookworm``; not closed with the desktop.
        size: size of the screen.
        settle: maximum seconds to wait after actions until the screen stops changing.
        cursor: whether the pointer is drawn in pictures.
        tree: whether looks contain the applications' elements, through AT-SPI. GTK applications
            and LibreOffice report theirs; the terminal has none.
        tree_seconds: limit for reading them; those that were read until then are returned, and
            :attr:`DesktopLook.elements_cut` states the reason.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        size: Size = DESKTOP_SIZE,
        settle: float = 1.0,
        cursor: bool = False,
        tree: bool = False,
        tree_seconds: float = TREE_SECONDS,
    ) -> None:
        self.size = size
        self.display = ""
        """The X display, for commands run in addition to the driver; empty before it is open."""
        self._sandbox = sandbox
        self._settle, self._cursor = settle, cursor
        self._tree = check_tree_seconds(tree_seconds) if tree else 0.0
        self._driver: Driver | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(self) -> None:
        """Copy the driver in, start the screen, and wait for its window manager.

        Raises:
            GuiDied: it did not start.
        """
        folder = f"/tmp/{_PACKAGE}"  # noqa: S108 - inside the sandbox
        for file in sorted(await asyncio.to_thread(lambda: list(_SOURCE.glob("*.py")))):
            text = await asyncio.to_thread(file.read_bytes)
            await self._sandbox.write_file(f"{folder}/{file.name}", text)
        command = ["python3", "-u", "-m", _PACKAGE]
        self._driver = await Driver.start(self._sandbox, command, "the desktop", cwd="/tmp")  # noqa: S108
        try:
            width, height = self.size
            started = await self._ask(_START_SECONDS, width=width, height=height, tree=self._tree)
            self.display = str(started["display"])
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Kill the driver and with it the screen. Idempotent."""
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.close()

    async def act(
        self, actions: Sequence[Action], picture: PictureForm | None = None
    ) -> DesktopLook:
        """Execute actions in order, let the screen settle, and look.

        An action that is refused ends the batch; earlier actions remain in effect.

        Args:
            actions: points in pixels of the screen.
            picture: how to show the screen; no picture if None.

        Raises:
            ScreenEnded: the screen is gone.
            GuiDied: it did not answer.
        """
        wire = [to_wire(action) for action in actions]
        waits = sum(float(action.get("seconds") or 0) for action in wire)
        typed = sum(len(str(action.get("text") or "")) for action in wire)
        seconds = _ANSWER_SECONDS + waits + self._settle + typed / 100
        return _look(
            await self._ask(
                seconds, op="act", actions=wire, settle=self._settle, picture=self._form(picture)
            )
        )

    async def look(self, picture: PictureForm | None = None) -> DesktopLook:
        """Look at the screen without doing anything.

        Raises:
            ScreenEnded: the screen is gone.
            GuiDied: it did not answer.
        """
        return _look(await self._ask(_ANSWER_SECONDS, op="look", picture=self._form(picture)))

    async def launch(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        seconds: float = 30.0,
    ) -> DesktopWindow | None:
        """Start an application and wait for its window.

        Args:
            command: an argument vector.
            env: variables added to those of the driver.
            cwd: working directory; the home folder if None.
            seconds: how long to wait; 0 does not wait and returns None.

        Raises:
            BadAction: there is no such program.
            GuiDied: it opened no window.
        """
        found = await self._ask(
            seconds + _ANSWER_SECONDS,
            op="launch",
            command=list(command),
            env=dict(env or {}),
            cwd=cwd,
            seconds=seconds,
            settle=self._settle,
        )
        return _window(found["window"]) if found.get("window") else None

    async def windows(self) -> list[DesktopWindow]:
        """Return every window, oldest first."""
        found = await self._ask(_ANSWER_SECONDS, op="windows")
        return [_window(window) for window in found["windows"]]

    async def activate(self, title: str) -> None:
        """Give the window whose title holds this text the focus.

        Raises:
            BadAction: there is no such window.
        """
        await self._ask(_ANSWER_SECONDS, op="activate", title=title, settle=self._settle)

    async def close_window(self, title: str) -> None:
        """Ask the window whose title holds this text to close.

        Raises:
            BadAction: there is no such window.
        """
        await self._ask(_ANSWER_SECONDS, op="close", title=title, settle=self._settle)

    async def clipboard(self) -> str:
        """Return the text on the clipboard; empty if there is none."""
        return str((await self._ask(_ANSWER_SECONDS, op="clipboard"))["text"])

    async def set_clipboard(self, text: str) -> None:
        """Put text on the clipboard."""
        await self._ask(_ANSWER_SECONDS, op="set_clipboard", text=text)

    def _form(self, picture: PictureForm | None) -> dict[str, Any] | None:
        return None if picture is None else {**asdict(picture), "cursor": self._cursor}

    async def _ask(self, deadline: float, /, **request: Any) -> dict[str, Any]:
        driver = self._driver
        if driver is None:
            raise GuiDied("the desktop is closed")
        if driver.silent:  # the next request would time out as well
            raise ScreenEnded("the desktop has stopped responding")
        return await driver.ask(request, deadline)


def _window(found: Mapping[str, Any]) -> DesktopWindow:
    left, top, width, height = found["place"]
    return DesktopWindow(
        found["title"], found["class"], found["pid"], (left, top, width, height), found["active"]
    )


def _element(found: Mapping[str, Any]) -> DesktopElement:
    left, top, width, height = found["box"]
    plain = {**found, "box": (left, top, width, height), "states": tuple(found["states"])}
    return DesktopElement(**plain)


def _look(answer: Mapping[str, Any]) -> DesktopLook:
    picture = answer.get("picture")
    x, y = answer["pointer"]
    return DesktopLook(
        picture=None
        if picture is None
        else Image(base64.b64decode(picture["data"]), f"image/{picture['form']}"),
        pointer=(x, y),
        windows=tuple(_window(window) for window in answer["windows"] if window),
        mark=answer["mark"],
        done=answer.get("done", 0),
        refused=answer.get("refused", ""),
        changed=answer.get("changed", False),
        clipboard=answer.get("clipboard"),
        elements=tuple(_element(one) for one in answer.get("elements") or ()),
        elements_cut=str(answer.get("elements_cut") or ""),
    )

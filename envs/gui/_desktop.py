"""A desktop in a sandbox: its driver, spoken to in JSON lines."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from trajgym.envs import Image
from trajgym.envs.gui._actions import NOTCH, Size, to_wire
from trajgym.envs.gui._errors import BadAction, GuiDied
from trajgym.envs.sandbox import SandboxError
from trajgym.trajectory import AsyncClosing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.gui._actions import Action
    from trajgym.envs.sandbox import Sandbox, Stream

__all__ = ["DESKTOP_SIZE", "Desktop", "DesktopLook", "DesktopWindow", "PictureForm", "ScreenEnded"]

DESKTOP_SIZE = Size(1280, 720)
_PACKAGE = "trajgym_desktop"
_SOURCE = Path(__file__).with_name("_desktop_inside")
_LINE_BYTES = 64 << 20
_START_SECONDS = 90.0
_ANSWER_SECONDS = 30.0
assert NOTCH == 100  # the driver counts the same


class ScreenEnded(GuiDied):
    """The X server, the window manager or the driver has ended, or an application showed nothing.

    Where the sandbox lives on, something inside did it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureForm:
    """How the screen is shown.

    Args:
        form: ``png`` (exact) or ``jpeg`` (smaller and quicker).
        size: width and height of the picture; the screen's own if None.
        quality: of a JPEG, 1 to 95.
    """

    form: Literal["png", "jpeg"] = "png"
    size: Size | None = None
    quality: int = 80


class DesktopWindow(NamedTuple):
    """A window, as the window manager knows it."""

    title: str
    application: str
    """Its class, such as ``Mousepad``."""
    pid: int
    place: tuple[int, int, int, int]
    """Left, top, width and height of its inside, in pixels of the screen."""
    active: bool


class DesktopLook(NamedTuple):
    """What the screen shows, and what came of the actions before."""

    picture: Image | None
    pointer: tuple[int, int]
    windows: tuple[DesktopWindow, ...]
    mark: int
    """A number that changes with what the screen shows."""
    done: int = 0
    """How many actions were carried out."""
    refused: str = ""
    """Why the next one was not."""
    changed: bool = False
    """Whether the screen looks different than at the last look."""

    @property
    def active(self) -> DesktopWindow | None:
        """The window with the focus."""
        return next((window for window in self.windows if window.active), None)


class Desktop(AsyncClosing):
    """An X server, a window manager and applications in a sandbox. Use it with ``async with``.

    Pictures are taken by mss and input goes through XTEST inside; nothing needs a network.

    Args:
        sandbox: with the image ``trajgym/desktop:bookworm``; not closed with the desktop.
        size: of the screen.
        settle: seconds to wait at most after actions until the screen stands still.
    """

    def __init__(self, sandbox: Sandbox, *, size: Size = DESKTOP_SIZE, settle: float = 1.0) -> None:
        self.size = size
        self.display = ""
        """The X display, for commands beside the driver; empty before it is open."""
        self._sandbox = sandbox
        self._settle = settle
        self._stream: Stream | None = None
        self._asked = 0
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(self) -> None:
        """Copy the driver in, start the screen, and wait for its window manager.

        Raises:
            GuiDied: it did not come up.
        """
        folder = f"/tmp/{_PACKAGE}"  # noqa: S108 - inside the sandbox
        for file in sorted(await asyncio.to_thread(lambda: list(_SOURCE.glob("*.py")))):
            text = await asyncio.to_thread(file.read_bytes)
            await self._sandbox.write_file(f"{folder}/{file.name}", text)
        command = ["python3", "-u", "-m", _PACKAGE]
        self._stream = await self._sandbox.stream(command, cwd="/tmp", limit=_LINE_BYTES)  # noqa: S108
        try:
            width, height = self.size
            started = await self._ask(_START_SECONDS, width=width, height=height)
            self.display = str(started["display"])
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Kill the driver and with it the screen. Idempotent."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    async def act(
        self, actions: Sequence[Action], picture: PictureForm | None = None
    ) -> DesktopLook:
        """Carry out actions in order, let the screen settle, and look.

        One that is refused ends the row; what came before it stays done.

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
                seconds, op="act", actions=wire, settle=self._settle, picture=_form(picture)
            )
        )

    async def look(self, picture: PictureForm | None = None) -> DesktopLook:
        """Look at the screen without doing anything.

        Raises:
            ScreenEnded: the screen is gone.
            GuiDied: it did not answer.
        """
        return _look(await self._ask(_ANSWER_SECONDS, op="look", picture=_form(picture)))

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
            cwd: where it begins; the home folder if None.
            seconds: how long to wait; 0 does not wait and returns None.

        Raises:
            BadAction: there is no such program.
            GuiDied: no window came.
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

    async def _ask(self, deadline: float, /, **request: Any) -> dict[str, Any]:
        async with self._turn:
            stream = self._stream
            if stream is None:
                raise GuiDied("the desktop is closed")
            self._asked += 1
            stream.send(json.dumps({"id": self._asked, **request}).encode())
            try:
                async with asyncio.timeout(deadline):
                    answer = await self._answer(stream, self._asked)
            except TimeoutError:
                raise GuiDied(
                    f"the desktop did not answer {request.get('op', 'the start')!r} within "
                    f"{deadline:g} s"
                ) from None
            except (SandboxError, ValueError) as error:
                raise ScreenEnded(f"the desktop's driver is gone: {error}") from error
        if answer["ok"]:
            return answer
        kinds = {"refused": BadAction, "gone": ScreenEnded}
        raise kinds.get(str(answer.get("kind")), GuiDied)(str(answer["error"]))

    @staticmethod
    async def _answer(stream: Stream, asked: int) -> dict[str, Any]:
        """Return the answer to the newest request; those of cancelled ones are dropped."""
        while True:
            answer = json.loads(await stream.read())
            if isinstance(answer, dict) and answer.get("id") == asked:
                return answer


def _form(picture: PictureForm | None) -> dict[str, Any] | None:
    if picture is None:
        return None
    return {"form": picture.form, "size": picture.size, "quality": picture.quality}


def _window(found: Mapping[str, Any]) -> DesktopWindow:
    left, top, width, height = found["place"]
    return DesktopWindow(
        found["title"], found["class"], found["pid"], (left, top, width, height), found["active"]
    )


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
    )

"""Applications and their windows, as reported by the window manager."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._errors import Refused, ScreenGone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ._screen import Screen

__all__ = ["Windows"]

_CLIPBOARD_SECONDS = 15.0
_FOLLOW_SECONDS = 2.0
_ACTIVE_SECONDS = 10.0
"""A window that is not active yet does not get what is typed."""


class Windows:
    """Starts applications, finds windows, and holds the clipboard.

    Args:
        screen: where they are.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._display: Any = screen.display

    def launch(
        self, command: Sequence[str], env: Mapping[str, str], cwd: str | None, seconds: float
    ) -> dict[str, Any]:
        """Start an application and wait for its window.

        Args:
            command: an argument vector.
            env: variables added to the driver's.
            cwd: working directory; the home folder if None.
            seconds: deadline for its first window; 0 does not wait.

        Raises:
            Refused: there is no such program.
            ScreenGone: it opened no window.
        """
        before = set(self._screen.clients())
        log = self._screen.log.open("ab")
        try:
            process = subprocess.Popen(
                list(command),
                env={**os.environ, **env},
                cwd=cwd or Path.home(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            raise Refused(f"{command[0]!r} can't be started: {error}") from error
        finally:
            log.close()
        end = time.monotonic() + seconds
        while seconds:
            if new := [w for w in self._screen.clients() if w not in before]:
                self._until_active(new[0])
                return {"pid": process.pid, "window": self._describe(new[0])}
            if time.monotonic() > end:
                raise ScreenGone(f"{command[0]!r} showed no window within {seconds:g} s")
            time.sleep(0.01)
        return {"pid": process.pid}

    def all(self) -> list[dict[str, Any]]:
        """Return every window, oldest first: title, class, pid, place and whether it is active."""
        active = self.active()
        return [found for w in self._screen.clients() if (found := self._describe(w, active))]

    def find(self, title: str) -> int:
        """Return the window whose title holds a text.

        Raises:
            Refused: there is no such window.
        """
        for window in self._screen.clients():
            if title in (self._describe(window) or {}).get("title", ""):
                return window
        raise Refused(f"no window's title holds {title!r}")

    def activate(self, title: str) -> None:
        """Raise a window and give it the focus."""
        window = self.find(title)
        self._ask(window, "_NET_ACTIVE_WINDOW")
        self._until_active(window)

    def close(self, title: str) -> None:
        """Ask a window to close, and wait a moment: it may open a dialog instead."""
        window = self.find(title)
        self._ask(window, "_NET_CLOSE_WINDOW")
        _wait(lambda: window not in self._screen.clients())

    def _until_active(self, window: int) -> None:
        _wait(lambda: (self._describe(window) or {}).get("active", True), _ACTIVE_SECONDS)

    def _ask(self, window: int, message: str) -> None:
        from Xlib import X
        from Xlib.protocol import event

        target = self._display.create_resource_object("window", window)
        asked = event.ClientMessage(
            window=target,
            client_type=self._screen.atom(message),
            data=(32, [2, X.CurrentTime, 0, 0, 0]),
        )
        mask = X.SubstructureRedirectMask | X.SubstructureNotifyMask
        self._screen.root.send_event(asked, event_mask=mask)
        self._display.sync()

    def clipboard(self) -> str:
        """Return the text on the clipboard; empty if there is none."""
        done = _xclip(["-o"], b"")
        return "" if done is None else done.decode(errors="replace")

    def set_clipboard(self, text: str) -> None:
        """Put text on the clipboard."""
        if _xclip(["-i"], text.encode()) is None:
            raise Refused("the clipboard does not take this text")

    def _property(self, window: Any, name: str) -> Any:
        from Xlib import X, error

        try:
            found = window.get_full_property(self._screen.atom(name), X.AnyPropertyType)
        except error.XError:
            return None
        return None if found is None else found.value

    def active(self) -> int:
        """Return the window with the focus, 0 if there is none."""
        found = self._property(self._screen.root, "_NET_ACTIVE_WINDOW")
        return 0 if found is None else int(found[0])

    def _describe(self, identity: int, active: int | None = None) -> dict[str, Any] | None:
        """Return the properties of a window; None if it no longer exists."""
        from Xlib import error

        window = self._display.create_resource_object("window", identity)
        try:
            place = window.get_geometry()
            corner = window.translate_coords(self._screen.root, 0, 0)
            named = window.get_wm_class() or ("", "")
        except error.XError:
            return None
        title = self._property(window, "_NET_WM_NAME")
        pid = self._property(window, "_NET_WM_PID")
        return {
            "title": bytes(title).decode(errors="replace") if title is not None else "",
            "class": named[1],
            "pid": int(pid[0]) if pid is not None else 0,
            "place": [-corner.x, -corner.y, place.width, place.height],
            "active": identity == (self.active() if active is None else active),
        }


def _wait(check: Callable[[], bool], seconds: float = _FOLLOW_SECONDS) -> None:
    """Wait for the window manager; if it does not react, the screen shows that."""
    end = time.monotonic() + seconds
    while not check() and time.monotonic() < end:
        time.sleep(0.005)


def _xclip(options: list[str], data: bytes) -> bytes | None:
    command = ["xclip", "-selection", "clipboard", *options]
    quiet = subprocess.PIPE if options == ["-o"] else subprocess.DEVNULL
    try:
        done = subprocess.run(
            command,
            input=data,
            stdout=quiet,
            stderr=subprocess.DEVNULL,
            timeout=_CLIPBOARD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        return b"" if options == ["-o"] else None
    return done.stdout or b""

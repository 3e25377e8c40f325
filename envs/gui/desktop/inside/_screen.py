"""The X server, the window manager, and screenshots."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._errors import ScreenGone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["QUIET", "Screen", "wait_until"]

QUIET = 0.12
"""Seconds without a change after which the screen counts as settled."""
_BACKGROUND = 0x3B5568
_PROBE_SECONDS = 0.25
"""How long the first test window is waited for; each further one twice as long."""
_LOOK_EVERY = 0.015
_SETTINGS = {
    ".config/gtk-3.0/settings.ini": (
        "[Settings]\ngtk-cursor-blink=false\ngtk-enable-animations=false\n"
    ),
    ".gtkrc-2.0": "gtk-cursor-blink = 0\n",
    ".config/pcmanfm/default/pcmanfm.conf": "[ui]\nshow_statusbar=0\n",
    ".Xdefaults": "XTerm*faceName: DejaVu Sans Mono\nXTerm*faceSize: 10\nXTerm*utf8: 1\n",
}
"""Nothing on the screen may change by itself, such as a cursor or the free space of a disk:
a fork by replay compares pictures."""


_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "NO_AT_BRIDGE": "1",
    "GSETTINGS_BACKEND": "memory",
    "LIBGL_ALWAYS_SOFTWARE": "1",
}


def wait_until(what: str, seconds: float, check: Callable[[], bool]) -> None:
    """Return once ``check`` holds.

    Raises:
        ScreenGone: it did not within ``seconds``.
    """
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise ScreenGone(f"{what} did not come up within {seconds:g} s")
        time.sleep(0.01)


class Screen:
    """A virtual X server with a window manager; both end with the sandbox.

    Args:
        width: in pixels.
        height: in pixels.
        seconds: deadline for both to start.

    Raises:
        ScreenGone: they did not start in time.
    """

    def __init__(self, width: int, height: int, seconds: float = 30.0) -> None:
        self.width, self.height = width, height
        self._atoms: dict[str, int] = {}
        self.log = Path.home() / ".trajgym-desktop.log"
        for name, text in _SETTINGS.items():
            file = Path.home() / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        os.environ |= _ENVIRONMENT
        os.environ["DISPLAY"] = self._start_server(seconds)
        from Xlib.display import Display

        self.display: Any = Display()
        self.root: Any = self.display.screen().root
        self.root.change_attributes(background_pixel=_BACKGROUND)
        self.root.clear_area()
        self._manager = self.spawn(["openbox", "--sm-disable"])
        self._patience = _PROBE_SECONDS
        wait_until("the window manager", seconds, self._is_managed)
        import mss

        self._eye: Any = mss.mss()
        self._eye_with_cursor: Any = None

    def spawn(self, command: Sequence[str], keep: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        """Start a process in a new session; its output is written to the log."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=keep,
            )

    def _start_server(self, seconds: float) -> str:
        """Start the X server and return its display, which it chooses itself."""
        reading, writing = os.pipe()
        size = f"{self.width}x{self.height}x24"
        command = ["Xvfb", "-displayfd", str(writing), "-screen", "0", size]
        self._server = self.spawn(
            [*command, "-nolisten", "tcp", "-noreset", "-dpi", "96"], keep=(writing,)
        )
        os.close(writing)
        return f":{self._read_display(reading, seconds)}"

    def _read_display(self, reading: int, seconds: float) -> str:
        os.set_blocking(reading, False)
        said = b""

        def complete() -> bool:
            nonlocal said
            if self._server.poll() is not None:
                raise ScreenGone(
                    f"Xvfb ended at once: {self.log.read_text(errors='replace')[-500:]}"
                )
            try:
                said += os.read(reading, 64)
            except BlockingIOError:
                return False
            return said.endswith(b"\n")

        wait_until("Xvfb", seconds, complete)
        os.close(reading)
        return said.decode().strip()

    def atom(self, name: str) -> int:
        """Return the number of a property's name."""
        if name not in self._atoms:
            self._atoms[name] = int(self.display.intern_atom(name))
        return self._atoms[name]

    def _is_managed(self) -> bool:
        """Open a test window and return whether the window manager manages it.

        A window that is opened before the manager is ready is never managed. The manager announces
        itself (``_NET_SUPPORTING_WM_CHECK``) before it is ready, so only a test window is proof.
        """
        from Xlib import X

        probe = self.root.create_window(0, 0, 8, 8, 0, X.CopyFromParent)
        probe.map()
        self.display.sync()
        end = time.monotonic() + self._patience
        self._patience *= 2
        while not (taken := probe.id in self.clients()) and time.monotonic() < end:
            time.sleep(0.005)
        probe.destroy()
        self.display.sync()
        if taken:
            wait_until("the end of a window", 5.0, lambda: probe.id not in self.clients())
        return taken

    def clients(self) -> list[int]:
        """Return the windows that the window manager manages, oldest first."""
        from Xlib import X

        found = self.root.get_full_property(self.atom("_NET_CLIENT_LIST"), X.AnyPropertyType)
        return [] if found is None else [int(window) for window in found.value]

    def check(self) -> None:
        """Check that the screen still exists.

        Raises:
            ScreenGone: the X server or the window manager has ended.
        """
        for name, process in (("Xvfb", self._server), ("openbox", self._manager)):
            if process.poll() is not None:
                raise ScreenGone(f"{name} has ended with status {process.returncode}")

    def mark(self) -> int:
        """Return a number that changes with what the screen shows."""
        return zlib.crc32(self._grab().raw)

    def settle(self, seconds: float, quiet: float = QUIET) -> None:
        """Wait until the screen has not changed for ``quiet`` seconds, at most ``seconds``."""
        begun = since = time.monotonic()
        if not seconds:
            return
        last = self.mark()
        while (now := time.monotonic()) < begun + seconds and now < since + quiet:
            time.sleep(_LOOK_EVERY)
            if (mark := self.mark()) != last:
                last, since = mark, time.monotonic()

    def picture(
        self,
        form: str,
        size: Sequence[int] | None,
        quality: int,
        *,
        area: Sequence[int] | None = None,
        cursor: bool = False,
    ) -> dict[str, Any]:
        """Return the screen, encoded.

        Args:
            form: ``png`` or ``jpeg``.
            size: width and height of the picture; the screen's own if None.
            quality: quality of JPEG images.
            area: left, top, right and bottom of the part that is shown; everything if None.
            cursor: whether the pointer is drawn. The mark is that of the screen without it.
        """
        from PIL import Image

        seen = self._grab()
        shown = self._grab(cursor=True) if cursor else seen
        image = Image.frombytes("RGB", shown.size, shown.bgra, "raw", "BGRX")
        if area is not None:
            image = image.crop(tuple(map(int, area)))
        if size is not None and tuple(size) != image.size:
            image = image.resize((int(size[0]), int(size[1])), Image.Resampling.LANCZOS)
        out = io.BytesIO()
        if form == "jpeg":
            image.save(out, "JPEG", quality=quality)
        else:
            image.save(out, "PNG", compress_level=1)
        return {
            "form": form,
            "data": base64.b64encode(out.getvalue()).decode(),
            "mark": zlib.crc32(seen.raw),
        }

    def _grab(self, *, cursor: bool = False) -> Any:
        if cursor and self._eye_with_cursor is None:
            import mss

            self._eye_with_cursor = mss.mss(with_cursor=True)
        eye = self._eye_with_cursor if cursor else self._eye
        return eye.grab({"left": 0, "top": 0, "width": self.width, "height": self.height})

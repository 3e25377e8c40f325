"""The main loop: one request and one answer per line."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

from ._accessible import Accessibility
from ._errors import Refused, ScreenGone
from ._input import Input
from ._ping import Ping
from ._screen import QUIET, Screen
from ._windows import Windows

_MOST_SECONDS = 100.0
_BETWEEN = 0.05
"""Seconds between two actions of a batch: toolkits drop keys that immediately follow a click."""
_PR_SET_DUMPABLE = 4
_LEAST_SETTLE = 0.2
_DRAWN = 10
"""How many times as long as an answer of an application its drawing may take."""
_READ_SECONDS = 10.0
_GUESS_SECONDS = 2.0
_NOTHING = {"screenshot", "zoom", "cursor_position", "say", "give_up", "finish"}
_MAX_CLIPBOARD = 20_000
"""Characters of the clipboard that are shown to the agent."""


class Driver:
    """Carries out requests.

    Args:
        width: width of the screen.
        height: height of the screen.
        tree: seconds that reading the applications' elements may take; 0 to read none.
    """

    def __init__(self, width: int, height: int, *, tree: float = 0.0) -> None:
        self._screen = Screen(width, height)
        self._accessibility = Accessibility(self._screen.spawn, tree) if tree else None
        self._windows = Windows(self._screen)
        self._input = Input(self._screen, self._wait_until_read)
        self._ping = Ping(self._screen)
        self._seen = self._screen.mark()
        self._read: str | None = None
        """The clipboard's text, if an action of the batch asked for it."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            Refused: it can't be executed.
            ScreenGone: the screen is gone, or an application did not start.
        """
        self._screen.check()
        self._ping.drain()
        op = request.get("op")
        if op == "act":
            return self._act(request)
        if op == "look":
            return self._look(request)
        if op == "launch":
            started = self._windows.launch(
                request["command"],
                request.get("env") or {},
                request.get("cwd"),
                float(request.get("seconds", 20.0)),
            )
            self._settle(float(request.get("settle", 1.0)))
            return started
        if op == "windows":
            return {"windows": self._windows.all()}
        if op in {"activate", "close"}:
            (self._windows.activate if op == "activate" else self._windows.close)(request["title"])
            return {"settled": self._settle(float(request.get("settle", 1.0)))}
        if op == "clipboard":
            return {"text": self._windows.clipboard()}
        if op == "set_clipboard":
            self._windows.set_clipboard(request["text"])
            return {}
        raise Refused(f"unknown request {op!r}")

    def is_gone(self) -> bool:
        """Return whether the screen has ended, or ends in a moment."""
        for _ in range(20):
            try:
                self._screen.check()
            except ScreenGone:
                return True
            time.sleep(0.01)
        return False

    def _act(self, request: dict[str, Any]) -> dict[str, Any]:
        before, self._read = self._seen, None
        error, done = "", 0
        try:
            for action in request["actions"]:
                if done:
                    self._input.sync()
                    time.sleep(_BETWEEN)
                self._perform(action)
                done += 1
        except Refused as refusal:
            self._input.release_all()
            error = str(refusal)
        self._input.sync()
        settled = self._settle(float(request.get("settle", 0.0)))
        seen = self._look(request)
        return {
            **seen,
            "done": done,
            "refused": error,
            "settled": settled,
            "changed": seen["mark"] != before,
            "clipboard": self._read,
        }

    def _wait_until_read(self) -> None:
        """Return once the active application has read its events, or after a fixed wait."""
        active = self._windows.active()
        if not (active and self._ping.wait(active, _READ_SECONDS)):
            self._screen.settle(_GUESS_SECONDS)

    def _settle(self, seconds: float) -> float:
        """Wait until the active application has read its events and the screen stops changing.

        Returns:
            The time that it took, in seconds.
        """
        begun = time.monotonic()
        quiet = QUIET
        active = self._windows.active() if seconds else None
        if active and self._ping.wait(active, seconds):
            # An application that has nothing left to read and answers late also draws late.
            asked = time.monotonic()
            self._ping.wait(active, seconds - (asked - begun))
            quiet = max(quiet, _DRAWN * (time.monotonic() - asked))
        left = seconds - (time.monotonic() - begun)
        self._screen.settle(max(left, min(seconds, _LEAST_SETTLE)), quiet)
        return time.monotonic() - begun

    def _look(self, request: dict[str, Any]) -> dict[str, Any]:
        pointer = self._input.pointer()
        found: dict[str, Any] = {"pointer": pointer, "windows": self._windows.all()}
        if self._accessibility is not None:
            found["elements"], found["elements_cut"] = self._accessibility.elements()
        if (look := request.get("picture")) is None:
            self._seen = self._screen.mark()
            return {**found, "mark": self._seen}
        picture = self._screen.picture(
            look.get("form", "png"),
            look.get("size"),
            int(look.get("quality", 80)),
            area=look.get("area"),
            cursor=bool(look.get("cursor")),
        )
        self._seen = picture.pop("mark")
        return {**found, "picture": picture, "mark": self._seen}

    def _use_clipboard(self, action: dict[str, Any]) -> None:
        if action["do"] == "set_clipboard":
            self._windows.set_clipboard(action["text"])
            return
        self._input.sync()
        self._wait_until_read()  # what was to be copied just before
        text = self._windows.clipboard()
        more = len(text) - _MAX_CLIPBOARD
        cut = f"[... {more} more characters ...]" if more > 0 else ""
        self._read = text[:_MAX_CLIPBOARD] + cut

    def _perform(self, action: dict[str, Any]) -> None:
        """Execute one action in the library's wire form."""
        do, hands = action.get("do"), self._input
        if do in _NOTHING:
            return
        if do in {"read_clipboard", "set_clipboard"}:
            self._use_clipboard(action)
            return
        if isinstance(action.get("at"), str):
            raise Refused("a desktop has no element ids: name a point")
        with hands.held(action.get("keys") or () if do != "press_keys" else ()):
            match do:
                case "click":
                    hands.click(action["at"], action["button"], int(action["count"]))
                case "move":
                    hands.move(action["at"])
                case "mouse_down" | "mouse_up":
                    hands.button(action["button"], down=do == "mouse_down")
                case "drag":
                    hands.drag(action["path"], action["button"])
                case "scroll":
                    hands.scroll(action["at"], int(action["dx"]), int(action["dy"]))
                case "type_text":
                    hands.type(action["text"])
                case "press_keys":
                    hands.press(action["keys"], min(float(action["seconds"]), _MOST_SECONDS))
                case "key_down" | "key_up":
                    hands.key(action["key"], down=do == "key_down")
                case "wait":
                    time.sleep(min(float(action["seconds"]), _MOST_SECONDS))
                case _:
                    raise Refused(f"a desktop can't do {do!r}")


def _close_to_others() -> None:
    """Protect this process against others of the same user.

    The agent has a terminal: it could write answers in place of the driver, or read its memory.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")


def main() -> None:
    """Serve until stdin ends."""
    _close_to_others()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of applications must not mix with the answers
    driver: Driver | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {"id": request.get("id"), "ok": True}
        try:
            if driver is None:
                width, height = int(request["width"]), int(request["height"])
                driver = Driver(width, height, tree=float(request.get("tree") or 0))
                answer["display"] = os.environ["DISPLAY"]
            else:
                answer |= driver.answer(request)
        except Refused as error:
            answer |= {"ok": False, "error": str(error), "kind": "refused"}
        except ScreenGone as error:
            answer |= {"ok": False, "error": str(error), "kind": "gone"}
        except Exception as error:  # noqa: BLE001 - boundary: reported to the library
            kind = "gone" if driver is not None and driver.is_gone() else "broken"
            answer |= {"ok": False, "error": f"{type(error).__name__}: {error}", "kind": kind}
        with suppress(BrokenPipeError):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()

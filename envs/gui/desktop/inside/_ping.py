"""Detecting that an application has processed the events sent to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._screen import Screen

__all__ = ["Ping"]


class Ping:
    """Pings windows with ``_NET_WM_PING``, which toolkits answer in the order of their events.

    Args:
        screen: where the windows are.
    """

    def __init__(self, screen: Screen) -> None:
        from Xlib import X

        self._screen = screen
        self._display: Any = screen.display
        self._number = 0
        screen.root.change_attributes(event_mask=X.SubstructureNotifyMask)

    def wait(self, identity: int, seconds: float) -> bool:
        """Return True once the application of a window has read all events before this one.

        False if it did not within ``seconds``, or does not support pings.
        """
        from Xlib import X, error
        from Xlib.protocol import event

        window = self._display.create_resource_object("window", identity)
        ping, protocols = self._screen.atom("_NET_WM_PING"), self._screen.atom("WM_PROTOCOLS")
        self._number += 1
        try:
            if ping not in window.get_wm_protocols():
                return False
        except error.XError:
            return False
        data = (32, [ping, self._number, identity, 0, 0])
        window.send_event(
            event.ClientMessage(window=window, client_type=protocols, data=data), X.NoEventMask
        )
        self._display.flush()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._answered():
                return True
            time.sleep(0.002)
        return False

    def _answered(self) -> bool:
        from Xlib import X

        found = False
        while self._display.pending_events():
            seen = self._display.next_event()
            if seen.type == X.ClientMessage and seen.data[0] == 32:
                found |= list(seen.data[1])[1] == self._number
        return found

    def drain(self) -> None:
        """Discard pending events; they are not used."""
        self._answered()

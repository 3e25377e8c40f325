"""Errors of graphical environments.

::

    ToolError
    └── BadAction            an action that can't be parsed or executed; the agent gets the message
    TrajgymError
    └── GuiDied              the screen could not be used; ends `failed:gui`
        └── ScreenEnded      the browser, the X server or the driver ended or does not answer

The end of a screen is treated the same for browsers and desktops. While a task is being opened
it is a failure (`failed:gui`, no score). After the agent has started, and while the sandbox still
runs commands, it was caused by the page or the agent: the attempt ends `truncated:screen`, and is
verified and scored. If the sandbox itself is gone, the attempt ends
`failed:sandbox`. See :meth:`trajgym.envs.gui._screen_env.ScreenEnv.screen_ended`.
"""

from __future__ import annotations

from trajgym.envs import ToolError
from trajgym.trajectory import TrajgymError

__all__ = ["BadAction", "GuiDied", "ScreenEnded"]


class BadAction(ToolError):
    """An action that can't be parsed or executed; the message states what to do instead."""


class GuiDied(TrajgymError):
    """The screen could not be used, for a reason outside the agent's control."""

    part = "gui"


class ScreenEnded(GuiDied):
    """The browser, the X server, its window manager or the driver ended or does not answer.

    Also raised if an application that a task launches opens no window.
    """

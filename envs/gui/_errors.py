"""Errors of graphical environments.

::

    ToolError
    └── BadAction            an action that can't be understood or carried out; the agent reads why
    TrajgymError
    └── GuiDied              the driver, the browser or the screen is gone; ends `failed:gui`
"""

from __future__ import annotations

from trajgym.envs import ToolError
from trajgym.trajectory import TrajgymError

__all__ = ["BadAction", "GuiDied"]


class BadAction(ToolError):
    """An action that can't be understood or carried out; the text says what to do instead."""


class GuiDied(TrajgymError):
    """What the agent looks at does not answer any more; outside the agent's control."""

    part = "gui"

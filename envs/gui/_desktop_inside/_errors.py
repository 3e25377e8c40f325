"""What can go wrong inside."""

from __future__ import annotations

__all__ = ["Refused", "ScreenGone"]


class Refused(Exception):
    """An action that can't be carried out; the agent reads why, and the screen goes on."""


class ScreenGone(Exception):
    """The screen, its window manager or an application did not come up, or is gone."""

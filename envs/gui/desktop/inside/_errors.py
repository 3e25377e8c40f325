"""Errors of the driver."""

from __future__ import annotations

__all__ = ["Refused", "ScreenGone"]


class Refused(Exception):
    """An action that can't be executed; the agent gets the message, and the session continues."""


class ScreenGone(Exception):
    """The screen, its window manager or an application did not start, or has ended."""

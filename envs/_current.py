"""Which session the code that is running works for."""

from __future__ import annotations

from contextvars import ContextVar

__all__ = ["current_session"]

current_session: ContextVar[str] = ContextVar("trajgym-session", default="")
"""The session's id; empty outside of one. Tasks and threads that its code starts have it too."""

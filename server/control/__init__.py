"""Weight updates: pause, resume, version."""

from trajgym.server.control._control import Control, PauseMode

__all__ = ["Control", "PauseMode"]

"""A desktop in a sandbox: the environment, its tasks, and its observations."""

import warnings as _warnings
from typing import Any as _Any

from trajgym.envs.gui._errors import ScreenEnded
from trajgym.envs.gui.desktop import _env
from trajgym.envs.gui.desktop._desktop import (
    DESKTOP_SIZE,
    Desktop,
    DesktopElement,
    DesktopLook,
    DesktopWindow,
)
from trajgym.envs.gui.desktop._env import (
    DESKTOP_IMAGE,
    DesktopEnv,
)
from trajgym.envs.gui.desktop._osworld import OSWorldTasks, Refusal, osworld_task, osworld_tasks
from trajgym.envs.gui.desktop._tasks import Check, DesktopRecord, Step, load_desktop_tasks
from trajgym.envs.gui.desktop._world import SetupFailed

__all__ = [
    "DESKTOP_IMAGE",
    "DESKTOP_SIZE",
    "Check",
    "Desktop",
    "DesktopElement",
    "DesktopEnv",
    "DesktopLook",
    "DesktopRecord",
    "DesktopWindow",
    "OSWorldTasks",
    "Refusal",
    "ScreenEnded",
    "SetupFailed",
    "Step",
    "load_desktop_tasks",
    "osworld_task",
    "osworld_tasks",
]

_DEPRECATED = {
    "DesktopEnvBase": "DesktopEnv",
    "OpenAIDesktopEnv": "DesktopEnv with actions='openai'",
    "TarsDesktopEnv": "DesktopEnv with actions='ui-tars'",
}
"""Old names and their replacements."""


def __getattr__(name: str) -> _Any:
    """Return a deprecated class, with a warning."""
    if name in _DEPRECATED:
        text = f"{name} is deprecated: use {_DEPRECATED[name]}"
        _warnings.warn(text, DeprecationWarning, stacklevel=2)
        return _env.DesktopEnv if name == "DesktopEnvBase" else getattr(_env, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

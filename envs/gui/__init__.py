"""Graphical environments: a browser and a desktop, observed as pictures and elements.

Actions and the parsers of action spaces are in :mod:`trajgym.envs.gui.actions`, observations and
other parts in :mod:`trajgym.envs.gui.browser` and :mod:`trajgym.envs.gui.desktop`.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from trajgym.envs.gui import actions, browser, desktop
from trajgym.envs.gui._errors import BadAction, GuiDied, ScreenEnded
from trajgym.envs.gui._picture import PictureForm
from trajgym.envs.gui._screen_env import ScreenEnv
from trajgym.envs.gui.actions._spaces import ActionSpace
from trajgym.envs.gui.browser._browser import Browser
from trajgym.envs.gui.browser._env import BrowserEnv, BrowserEnvBase
from trajgym.envs.gui.browser._goals import Condition
from trajgym.envs.gui.browser._miniwob import MiniWobEnv, load_miniwob_tasks
from trajgym.envs.gui.browser._sandbox import BROWSER_IMAGE, browser_spec
from trajgym.envs.gui.browser._tasks import BrowserRecord, load_browser_tasks
from trajgym.envs.gui.browser._webarena import WebArenaEnv, webarena_tasks
from trajgym.envs.gui.desktop._desktop import Desktop
from trajgym.envs.gui.desktop._env import DESKTOP_IMAGE, DesktopEnv
from trajgym.envs.gui.desktop._osworld import osworld_tasks
from trajgym.envs.gui.desktop._tasks import Check, DesktopRecord, load_desktop_tasks
from trajgym.envs.gui.desktop._world import SetupFailed
from trajgym.trajectory._deprecated import moved_names as _moved_names

__all__ = [
    "BROWSER_IMAGE",
    "DESKTOP_IMAGE",
    "ActionSpace",
    "BadAction",
    "Browser",
    "BrowserEnv",
    "BrowserEnvBase",
    "BrowserRecord",
    "Check",
    "Condition",
    "Desktop",
    "DesktopEnv",
    "DesktopRecord",
    "GuiDied",
    "MiniWobEnv",
    "PictureForm",
    "ScreenEnded",
    "ScreenEnv",
    "SetupFailed",
    "WebArenaEnv",
    "browser_spec",
    "load_browser_tasks",
    "load_desktop_tasks",
    "load_miniwob_tasks",
    "osworld_tasks",
    "webarena_tasks",
]


if not _TYPE_CHECKING:  # type checkers report the old names
    _moved = _moved_names(__name__, actions.__name__, browser.__name__, desktop.__name__)

    def __getattr__(name: str) -> object:
        """Return a name that has moved to a submodule, or a deprecated class, with a warning."""
        return getattr(desktop, name) if name in desktop._DEPRECATED else _moved(name)

"""A browser in a sandbox: the environment, its tasks, and its observations."""

from trajgym.envs.gui.browser._browser import BROWSER_SIZE, Browser, launch_browser
from trajgym.envs.gui.browser._env import BrowserEnv, BrowserEnvBase
from trajgym.envs.gui.browser._goals import Condition, goal_distance
from trajgym.envs.gui.browser._look import BrowserElement, BrowserEvent, BrowserLook
from trajgym.envs.gui.browser._miniwob import MiniWobEnv, load_miniwob_tasks, miniwob_names
from trajgym.envs.gui.browser._sandbox import BROWSER_IMAGE, browser_spec, miniwob_html
from trajgym.envs.gui.browser._tasks import BrowserRecord, load_browser_tasks
from trajgym.envs.gui.browser._view import draw_marks
from trajgym.envs.gui.browser._webarena import WebArenaEnv, WebArenaTasks, webarena_tasks

__all__ = [
    "BROWSER_IMAGE",
    "BROWSER_SIZE",
    "Browser",
    "BrowserElement",
    "BrowserEnv",
    "BrowserEnvBase",
    "BrowserEvent",
    "BrowserLook",
    "BrowserRecord",
    "Condition",
    "MiniWobEnv",
    "WebArenaEnv",
    "WebArenaTasks",
    "browser_spec",
    "draw_marks",
    "goal_distance",
    "launch_browser",
    "load_browser_tasks",
    "load_miniwob_tasks",
    "miniwob_html",
    "miniwob_names",
    "webarena_tasks",
]

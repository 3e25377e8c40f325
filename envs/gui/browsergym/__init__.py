"""BrowserGym's own task classes, unchanged, with BrowserGym's browser, actions and observations."""

from trajgym.envs.gui.browsergym._env import BROWSERGYM_IMAGE, BrowserGymEnv
from trajgym.envs.gui.browsergym._tasks import BrowserGymRecord, load_browsergym_tasks

__all__ = ["BROWSERGYM_IMAGE", "BrowserGymEnv", "BrowserGymRecord", "load_browsergym_tasks"]

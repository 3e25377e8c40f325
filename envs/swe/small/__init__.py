"""SWE tasks for small models: small generated packages, four tools and hidden test cases."""

from trajgym.envs.swe.small._agent import small_agent
from trajgym.envs.swe.small._env import SmallSweEnv
from trajgym.envs.swe.small._tasks import small_tasks

__all__ = ["SmallSweEnv", "small_agent", "small_tasks"]

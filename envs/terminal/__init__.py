"""Terminal tasks: a container, a shell, and a test script that grades the result."""

from trajgym.envs.terminal._env import TerminalEnv
from trajgym.envs.terminal._format import TerminalRecord, load_tasks, read_task
from trajgym.envs.terminal._image import mapped_dockerfile

__all__ = ["TerminalEnv", "TerminalRecord", "load_tasks", "mapped_dockerfile", "read_task"]

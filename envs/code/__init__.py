"""A code-interpreter environment: persistent Python in a sandbox, answers that can be checked."""

from trajgym.envs.code._answers import Match, is_right, last_boxed
from trajgym.envs.code._env import BlockCodeEnv, CodeEnv, CodeEnvBase
from trajgym.envs.code._interpreter import Cell, Interpreter
from trajgym.envs.code._tasks import CodeRecord, load_tasks

__all__ = [
    "BlockCodeEnv",
    "Cell",
    "CodeEnv",
    "CodeEnvBase",
    "CodeRecord",
    "Interpreter",
    "Match",
    "is_right",
    "last_boxed",
    "load_tasks",
]

"""Environments and sessions."""

from trajgym.envs._budgets import Budgets
from trajgym.envs._chat import ChatModel, Said
from trajgym.envs._check import check_env
from trajgym.envs._clock import AgentClock
from trajgym.envs._env import Env, Prompt, Response, Verdict
from trajgym.envs._errors import (
    EnvironmentFault,
    ForkDiverged,
    SessionEnded,
    ToolError,
    Truncate,
    Unforkable,
    UnknownEnv,
)
from trajgym.envs._meter import Remaining
from trajgym.envs._others import OtherTurn
from trajgym.envs._outside import OutsideTurns
from trajgym.envs._reply import Reply, Sampled, TurnLimits
from trajgym.envs._session import Session, StepResult
from trajgym.envs._spawn import Spawn
from trajgym.envs._spec import EnvSpec, register, registered
from trajgym.envs._subagent import SubAgent
from trajgym.envs._tasks import TaskData, load_tasks
from trajgym.envs._tools import Image, InvalidArguments, Tool, ToolResult, tool, tools_of
from trajgym.envs._waits import Waits, waiting

__all__ = [
    "AgentClock",
    "Budgets",
    "ChatModel",
    "Env",
    "EnvSpec",
    "EnvironmentFault",
    "ForkDiverged",
    "Image",
    "InvalidArguments",
    "OtherTurn",
    "OutsideTurns",
    "Prompt",
    "Remaining",
    "Reply",
    "Response",
    "Said",
    "Sampled",
    "Session",
    "SessionEnded",
    "Spawn",
    "StepResult",
    "SubAgent",
    "TaskData",
    "Tool",
    "ToolError",
    "ToolResult",
    "Truncate",
    "TurnLimits",
    "Unforkable",
    "UnknownEnv",
    "Verdict",
    "Waits",
    "check_env",
    "load_tasks",
    "register",
    "registered",
    "tool",
    "tools_of",
    "waiting",
]

"""Dialogue environments: tools, a policy text, and a simulated user."""

from trajgym.envs.dialogue._env import DialogueEnv
from trajgym.envs.dialogue._rental import RentalEnv
from trajgym.envs.dialogue._tasks import Action, DialogueRecord
from trajgym.envs.users import STOP, Line, ModelUser, ScriptedUser, User, UserTurn

__all__ = [
    "STOP",
    "Action",
    "DialogueEnv",
    "DialogueRecord",
    "Line",
    "ModelUser",
    "RentalEnv",
    "ScriptedUser",
    "User",
    "UserTurn",
]

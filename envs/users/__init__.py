"""Simulated users: a second policy that plays the user; its turns are recorded, never trained."""

from trajgym.envs.users._data import Line, UserData
from trajgym.envs.users._simulated import SimulatedUser, UserBudget
from trajgym.envs.users._users import (
    STOP,
    ModelUser,
    ScriptedUser,
    User,
    UserTurn,
    open_user,
)

__all__ = [
    "STOP",
    "Line",
    "ModelUser",
    "ScriptedUser",
    "SimulatedUser",
    "User",
    "UserBudget",
    "UserData",
    "UserTurn",
    "open_user",
]

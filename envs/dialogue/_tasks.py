"""Tasks of dialogue environments."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from trajgym.envs.users import UserData

__all__ = ["Action", "DialogueRecord"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Action(_Part):
    """A tool call of the reference solution: one that changes the data."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class DialogueRecord(UserData):
    """The task of one conversation; see :class:`trajgym.envs.users.UserData` for its user.

    Attributes:
        actions: calls that bring the data to the expected state; none if nothing may change.
        outputs: texts that the agent must have told the user; case and thousands commas don't
            count.
        asks: the first message of the scripted agent of demonstrations.
    """

    actions: list[Action] = Field(default_factory=list)
    outputs: list[str] = Field(default_factory=list)
    asks: str = "How can I identify you? Please tell me your e-mail address."

"""The part of a task that describes its user."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field, field_validator

from trajgym.envs import TaskData

__all__ = ["Line", "UserData"]


class Line(BaseModel):
    """One line of a scripted user; see :class:`ScriptedUser`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    says: str = Field(min_length=1)
    when: str = ""

    @field_validator("when")
    @classmethod
    def _is_pattern(cls, when: str) -> str:
        try:
            re.compile(when)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return when


class UserData(TaskData):
    """The data of a task with a simulated user; subclass it to add an environment's own fields.

    Attributes:
        instruction: the user's situation and wishes, for the model that plays the user; never
            shown to the agent.
        lines: the messages of a scripted user.
    """

    instruction: str = Field(min_length=1)
    lines: list[Line] = Field(default_factory=list)

"""Errors of environments and sessions.

::

    TrajgymError
    ├── ToolError                a tool says no; the agent reads the text and goes on
    ├── Truncate                 raised in a tool: the agent used up something; ends truncated
    ├── EnvironmentFault         the environment broke; ends `failed:env`, never scored
    ├── ForkDiverged             a replay did not see what was recorded
    ├── Unforkable               this environment can't be forked
    ├── SessionEnded             a step on a session that is over
    ├── UnknownEnv               no environment of that id (an InvalidInput)
    └── SandboxError             see `trajgym.envs.sandbox`; ends `failed:sandbox`

A tool that raises ``ToolError`` or ``ValueError`` answers the agent with that text. Any other
exception is a fault of the environment, not of the agent: the attempt ends ``failed:env`` with the
traceback, and is not scored.
"""

from __future__ import annotations

from trajgym.trajectory import InvalidInput, TrajgymError

__all__ = [
    "EnvironmentFault",
    "ForkDiverged",
    "SessionEnded",
    "ToolError",
    "Truncate",
    "Unforkable",
    "UnknownEnv",
]


class ToolError(TrajgymError):
    """A tool can't do what the agent asked; the text is the tool's result."""


class Truncate(TrajgymError):
    """The agent used up something that the environment bounds; the attempt is verified and scored.

    Args:
        budget: what ran out, as it shall stand in ``truncated:<budget>`` (``memory``, ``shell``).
        cause: one sentence for people.
    """

    def __init__(self, budget: str, cause: str) -> None:
        super().__init__(cause)
        self.budget = budget


class EnvironmentFault(TrajgymError):
    """The environment could not do its part; outside the agent's control.

    Args:
        part: what failed, as it shall stand in ``failed:<part>``.
        cause: one sentence for people.
    """

    def __init__(self, part: str, cause: str) -> None:
        super().__init__(cause)
        self.part = part


class ForkDiverged(TrajgymError):
    """Replaying recorded turns gave other observations: the fork would be another world."""


class Unforkable(TrajgymError):
    """The environment declares that it can't be forked, or can't be forked at this turn."""


class SessionEnded(TrajgymError):
    """The session is over; open a new one or fork an earlier turn."""


class UnknownEnv(InvalidInput):
    """No environment is registered under that id."""

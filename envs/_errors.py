"""Exceptions of environments and sessions.

::

    TrajgymError
    ├── ToolError                a tool reports an error to the agent, which continues
    ├── Truncate                 the agent reached a limit; ends `truncated:<budget>`, scored
    ├── EnvironmentFault         the environment failed; ends `failed:<part>`, not scored
    ├── ForkDiverged             a replay gave other observations than those recorded
    ├── Unforkable               the environment can't be forked
    ├── SessionEnded             a step on a session that has ended
    ├── UnknownEnv               there is no environment with that id (an InvalidInput)
    └── SandboxError             see `trajgym.envs.sandbox`; ends `failed:sandbox`

If a tool raises ``ToolError`` or ``ValueError``, its text is the result that the agent gets. Any
other exception is a fault of the environment: the attempt ends as ``failed:env``, with the
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
    """A tool can't execute the agent's request; the text becomes the tool's result."""


class Truncate(TrajgymError):
    """The agent reached a limit of the environment; the attempt is verified and scored.

    Args:
        budget: name of the limit, as in ``truncated:<budget>`` (``memory``, ``shell``).
        cause: one sentence that describes the limit.
    """

    def __init__(self, budget: str, cause: str) -> None:
        super().__init__(cause)
        self.budget = budget


class EnvironmentFault(TrajgymError):
    """The environment failed, for a reason outside the agent's control.

    Args:
        part: what failed, as in ``failed:<part>``.
        cause: one sentence that describes the failure.
    """

    def __init__(self, part: str, cause: str) -> None:
        super().__init__(cause)
        self.part = part


class ForkDiverged(TrajgymError):
    """Replaying recorded turns gave other observations, so the fork would have another state."""


class Unforkable(TrajgymError):
    """The environment can't be forked, or not at this turn."""


class SessionEnded(TrajgymError):
    """The session has ended; open a new one or fork an earlier turn."""


class UnknownEnv(InvalidInput):
    """There is no environment with that id."""

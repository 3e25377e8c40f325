"""The interface between the runner and whatever speaks for the agent.

::

    PolicyError                 the base; a session that meets one ends `failed:policy`
    ├── PolicyUnavailable       no answer after all retries: time-outs, rate limits, 5xx
    ├── PolicyRejected          the endpoint refused the request (4xx): never retried
    └── PolicyGarbage           it answered, but with nothing that is a message
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trajgym.envs import TurnLimits
from trajgym.trajectory import AsyncClosing, TrajgymError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs import Reply
    from trajgym.trajectory import IntArray, Message, Task, ToolSchema

__all__ = [
    "Policy",
    "PolicyError",
    "PolicyGarbage",
    "PolicyRejected",
    "PolicyRequest",
    "PolicyUnavailable",
]


class PolicyError(TrajgymError):
    """The policy gave no usable answer; outside the agent's control."""

    part = "policy"


class PolicyUnavailable(PolicyError):
    """No answer after all retries."""


class PolicyRejected(PolicyError):
    """The endpoint refused the request; retrying it would not help."""


class PolicyGarbage(PolicyError):
    """The answer is not an assistant message."""


@dataclass(slots=True, kw_only=True)
class PolicyRequest:
    """One policy call.

    Args:
        session: id of the session; send it as the sticky key of prefix caches.
        task: the task, for policies that follow a script.
        attempt: which attempt of the session; 0 unless the session was forked.
        turn: how many turns the attempt has had.
        messages: the whole conversation so far. Images are ``blob:<hash>`` URLs; ``images`` has
            their bytes.
        tools: JSON schemas of the tools.
        prefix_ids: int32 ``[S]``, prompt and response ids of the turn that this one continues;
            None on a first turn or after a text turn.
        prefix_messages: how many of ``messages`` those ids hold. A token-exact policy renders only
            the rest and appends it.
        limits: what the budgets leave.
        seed: sampling seed derived from task, sample and turn; None leaves it to the engine.
    """

    session: str
    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()
    task: Task | None = None
    sample: int = 0
    attempt: int = 0
    turn: int = 0
    prefix_ids: IntArray | None = None
    prefix_messages: int = 0
    limits: TurnLimits = field(default_factory=TurnLimits)
    seed: int | None = None
    images: dict[str, bytes] = field(default_factory=dict)


class Policy(AsyncClosing):
    """Messages and tools in, one assistant message out. One instance serves many sessions."""

    name: str
    """``kind:name``, recorded with every turn."""

    @abstractmethod
    async def sample(self, request: PolicyRequest) -> Reply:
        """Return the next assistant message.

        Raises:
            PolicyError: no usable answer; nothing of this call is recorded.
        """

    async def close(self) -> None:
        """Free what the policy holds. Idempotent."""

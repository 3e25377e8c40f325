"""The interface of policies, which give the agent's messages.

::

    PolicyError                 the base; a session in which one is raised ends `failed:policy`
    ├── PolicyUnavailable       no response after all retries: timeouts, rate limits, 5xx
    ├── PolicyRejected          the endpoint refused the request (4xx): never retried
    └── PolicyGarbage           it answered, but with nothing that is a message
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from trajgym.envs import TurnLimits
from trajgym.envs._results import shown
from trajgym.envs.faults import CANCEL_SECONDS
from trajgym.trajectory import InvalidInput, TrajgymError
from trajgym.trajectory._internal import AsyncClosing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from trajgym.envs import EnvSpec, Reply, Session
    from trajgym.rollout._settings import RunSettings
    from trajgym.trajectory import IntArray, Message, Task, ToolSchema

__all__ = [
    "AttemptPolicy",
    "Policy",
    "PolicyError",
    "PolicyGarbage",
    "PolicyRejected",
    "PolicyRequest",
    "PolicyUnavailable",
    "check_policy",
]


def check_policy(policy: object) -> None:
    """Check the type of a run's policy.

    Raises:
        InvalidInput: it is no instance of a policy.
    """
    if isinstance(policy, type) or not hasattr(policy, "sample"):
        raise InvalidInput(
            f"the policy is {shown(policy)}; give an instance of a Policy: ScriptedPolicy(...) "
            "takes a function or a list of answers"
        )


class PolicyError(TrajgymError):
    """The policy gave no usable response, for a reason outside the agent's control."""

    part = "policy"


class PolicyUnavailable(PolicyError):
    """There was no response after all retries."""


class PolicyRejected(PolicyError):
    """The endpoint refused the request; retrying would not help."""


class PolicyGarbage(PolicyError):
    """The response is not an assistant message."""


@dataclass(slots=True, kw_only=True)
class PolicyRequest:
    """One policy call.

    Args:
        session: id of the session; use it as the sticky key of prefix caches. A sub-agent's is
            followed by ``/`` and its name.
        agent: ``main``, or the name of a sub-agent.
        task: the task, for policies that follow a script.
        attempt: index of the attempt; 0 unless the session was forked.
        turn: number of turns that the attempt has had.
        messages: the whole conversation so far. Images are ``blob:<hash>`` URLs, whose bytes are in
            ``images``.
        tools: JSON schemas of the tools.
        prefix_ids: int32 ``[S]``, prompt and response ids of the turn that this one continues;
            None on a first turn or after a text turn.
        prefix_messages: how many of ``messages`` those ids cover. A token-exact policy renders only
            the rest and appends it.
        limits: what is left of the budgets.
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
    agent: str = "main"
    images: dict[str, bytes] = field(default_factory=dict)


class Policy(AsyncClosing):
    """Returns an assistant message for messages and tools. One instance serves many sessions."""

    name: str
    """``kind:name``, recorded with every turn."""
    cancel_seconds: ClassVar[float] = CANCEL_SECONDS
    """In which :meth:`sample` has to end once it is cancelled; then it is abandoned, and the
    attempt ends ``failed:policy``."""

    @property
    def identity(self) -> dict[str, Any]:
        """What its responses depend on, as JSON values: its name, and how it samples.

        It is recorded with a run; resuming the run with a policy of another identity is refused.
        """
        return {"name": self.name}

    @abstractmethod
    async def sample(self, request: PolicyRequest) -> Reply:
        """Return the next assistant message.

        Raises:
            PolicyError: there is no usable response; no turn is recorded for this call.
        """

    async def close(self) -> None:
        """Release the policy's resources. Idempotent."""


class AttemptPolicy(Policy):
    """A policy that runs whole attempts itself instead of returning single messages.

    For agents with a loop of their own. The session opens and verifies the environment, counts the
    budgets and records how the attempt ended; turns are recorded by the policy, see
    :class:`trajgym.envs.OutsideTurns`. Such a session can't be forked.
    """

    cancel_seconds: ClassVar[float] = 300.0
    """In which :meth:`attempt` has to end once it is cancelled: programs and sandboxes are closed
    within it."""

    async def sample(self, request: PolicyRequest) -> Reply:
        """Not available: the agent's own loop decides when its model is called."""
        del request
        raise PolicyRejected(
            f"{self.name} runs whole attempts: use it in a Runner or run_session()"
        )

    def check(self, spec: EnvSpec, settings: RunSettings) -> None:
        """Check whether a run can use this policy; called before its first session.

        Raises:
            InvalidInput: it can't.
        """
        if settings.expansion is not None:
            raise InvalidInput(
                f"{self.name} runs whole attempts, which can't be forked: omit the expansion"
            )
        del spec

    @abstractmethod
    def prepared(self, session: Session) -> AbstractAsyncContextManager[None]:
        """Return a context that is entered before the environment is opened.

        It is left after the environment was closed.
        """

    @abstractmethod
    async def attempt(
        self,
        session: Session,
        *,
        seed: int,
        before_turn: Callable[[], Awaitable[object]],
        after_turn: Callable[[], None],
    ) -> None:
        """Run the attempt of an open session to its end.

        Args:
            session: inside its own context and that of :meth:`prepared`.
            seed: sampling seeds derive from it.
            before_turn: awaited before each call of the model.
            after_turn: called when a turn is recorded; what it raises ends the attempt and is
                raised here.

        Raises:
            trajgym.envs.Truncate: a limit ended the attempt, which is then verified and scored.
            TrajgymError: it failed because of the part that the exception names.
        """

"""A simulated user in a session: its conversation, its budget and its recorded turns."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trajgym.envs import EnvironmentFault, OtherTurn, Truncate
from trajgym.envs._clock import off_the_clock
from trajgym.envs._waits import waiting
from trajgym.trajectory import Usage

if TYPE_CHECKING:
    from trajgym.envs import Env
    from trajgym.envs.users._users import User, UserTurn
    from trajgym.trajectory import Message

__all__ = ["SimulatedUser", "UserBudget"]


@dataclass(frozen=True, slots=True)
class UserBudget:
    """The limits of a simulated user in an attempt; None sets no limit.

    Limits are checked before each turn of the user. When one is reached, the attempt ends
    ``truncated:user_turns`` or ``truncated:user_tokens``; it is still verified and scored, because
    the length of the conversation depends on the agent.

    Args:
        turns: maximum number of turns of the user.
        tokens: maximum number of prompt and completion tokens of all its calls; counts that are
            not reported are taken as 0.
    """

    turns: int | None = None
    tokens: int | None = None


class SimulatedUser:
    """The user of one conversation.

    Its turns are reported to the session, which records them as turns of the agent ``user``, with
    the messages it received, its policy, token counts, sampling parameters and duration. They are
    not trained or exported, and their time does not count towards the agent's.

    Args:
        env: the environment whose session records the turns.
        user: the policy that generates its turns.
        budget: its limits.
    """

    def __init__(self, env: Env, user: User, budget: UserBudget | None = None) -> None:
        self._env = env
        self._user = user
        self._budget = budget or UserBudget()
        self._words: list[Message] = []
        self._used = {"turns": 0, "tokens": 0}

    @property
    def words(self) -> list[Message]:
        """The conversation so far; the user's own messages have the role ``assistant``."""
        return list(self._words)

    async def answer(self, text: str | None) -> str:
        """Return the user's response to a message of the agent.

        Args:
            text: the agent's message; None for the user's first message.

        Raises:
            Truncate: the user's budget is used up.
            EnvironmentFault: the user's message is empty; the attempt ends ``failed:user``.
        """
        self._check_budget()
        new: list[Message] = [] if text is None else [{"role": "user", "content": text}]
        started_at, started = time.time(), time.monotonic()
        with off_the_clock(), waiting("user"):
            turn = await self._user.say([*self._words, *new])
        if not turn.text.strip():
            raise EnvironmentFault("user", "the simulated user returned an empty message")
        message: Message = {"role": "assistant", "content": turn.text}
        opening = [] if self._words else list(getattr(self._user, "opening", ()))
        self._words += [*new, message]
        self._used["turns"] += 1
        self._used["tokens"] += (turn.prompt_tokens or 0) + (turn.completion_tokens or 0)
        self._env.note_other(
            OtherTurn(
                message=message,
                context=[*opening, *new],
                policy=turn.policy,
                usage=_usage(turn),
                sampling=turn.sampling,
                started_at=started_at,
                seconds=time.monotonic() - started,
            )
        )
        return turn.text

    def snapshot(self) -> dict[str, Any]:
        """Return the state, as JSON values."""
        return {"words": self._words, "used": self._used}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`snapshot` returned."""
        self._words, self._used = list(state["words"]), dict(state["used"])

    def _check_budget(self) -> None:
        for name, most in asdict(self._budget).items():
            if most is not None and self._used[name] >= most:
                raise Truncate(f"user_{name}", f"the simulated user has used its {most} {name}")


def _usage(turn: UserTurn) -> Usage | None:
    if turn.prompt_tokens is None and turn.completion_tokens is None:
        return None
    return Usage(
        prompt_tokens=turn.prompt_tokens or 0, completion_tokens=turn.completion_tokens or 0
    )

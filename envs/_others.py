"""Turns of other agents in a session, such as a simulated user with its own policy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs._plain import plain_message, plain_text
from trajgym.trajectory import InvalidInput, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trajgym.trajectory import Message, Sampling, Usage

__all__ = ["OtherTurn", "OtherTurns", "plain_others"]


@dataclass(slots=True, kw_only=True)
class OtherTurn:
    """One call of a policy other than the agent's, as reported by the environment.

    It has no token ids, because it is never trained on.

    Args:
        message: the generated message, with the role ``assistant``.
        policy: the policy that generated it, as ``kind:name``.
        context: the messages that were new to the policy: first its prompt, later the messages
            that it received.
        agent: the name of the other agent; each agent has its own conversation.
        usage: token counts.
        sampling: sampling parameters of the call.
        started_at: Unix time (s) of the call.
        seconds: duration of the call.
    """

    message: Message
    policy: str
    context: list[Message] = field(default_factory=list)
    agent: str = "user"
    usage: Usage | None = None
    sampling: Sampling | None = None
    started_at: float = 0.0
    seconds: float = 0.0


def plain_others(noted: Sequence[OtherTurn]) -> list[OtherTurn]:
    """Return reported turns with well-formed messages of plain values.

    Raises:
        InvalidInput: one is no :class:`OtherTurn`, or has a message that is malformed.
    """
    if not noted:
        return []
    found = []
    for one in noted:
        if not isinstance(one, OtherTurn):
            raise InvalidInput(f"note_other() was given {type(one).__name__}; give an OtherTurn")
        where = "a turn given to note_other()"
        message = plain_message(one.message, where, role="assistant")
        context = [plain_message(shown, where) for shown in one.context]
        policy, agent = plain_text(one.policy), plain_text(one.agent)
        found.append(replace(one, message=message, context=context, policy=policy, agent=agent))
    return found


class _Recorded(NamedTuple):
    after: int | None
    """The index of the agent's turn that it followed; None before the first turn."""
    turn: Turn


class OtherTurns:
    """The turns of other agents in one attempt, and the agent's turns that they followed.

    Args:
        shared: turns that a fork shares with the attempt from which it was forked.
    """

    def __init__(self, shared: Sequence[_Recorded] = ()) -> None:
        self._recorded = list(shared)

    def up_to(self, turns: Sequence[Turn]) -> OtherTurns:
        """Return the turns that followed the given turns of the agent or preceded its first."""
        known = {None, *(turn.index for turn in turns)}
        return OtherTurns([one for one in self._recorded if one.after in known])

    def made(self, others: Sequence[OtherTurn], attempt: int) -> Iterator[Turn]:
        """Yield the records of new turns; append each one before requesting the next."""
        for other in others:
            last = self._last(other.agent)
            rival = attempt > 0 and (last is None or last.attempt != attempt)
            yield Turn(
                index=-1,
                parent=None if last is None else last.index,
                edge="alternative" if rival else "continue",
                attempt=attempt,
                agent=other.agent,
                role="user",
                context=other.context,
                message=other.message,
                policy=other.policy,
                usage=other.usage,
                sampling=other.sampling,
                started_at=other.started_at,
                policy_seconds=other.seconds,
            )

    def add(self, turn: Turn, after: int | None) -> None:
        """Add an appended turn that followed the agent's turn ``after``."""
        self._recorded.append(_Recorded(after, turn))

    def returning(self, after: int | None) -> list[int]:
        """Return the index of each other agent's last turn that followed the turn ``after``."""
        last = {one.turn.agent: one.turn.index for one in self._recorded if one.after == after}
        return sorted(last.values())

    def _last(self, agent: str) -> Turn | None:
        found = [one.turn for one in self._recorded if one.turn.agent == agent]
        return found[-1] if found else None

"""The conversation of one agent in one attempt: its turns, and the messages that come next."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs._ledger import TokenTail
from trajgym.envs._others import OtherTurns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs._reply import Reply
    from trajgym.trajectory import Edge, Message, Turn

__all__ = ["Conversation", "Place"]


class Place(NamedTuple):
    """Where a turn belongs in the session's tree, and what was new in its prompt."""

    parent: int | None
    edge: Edge
    kept: int | None
    context: list[Message]
    returns: list[int]


class Conversation:
    """Turns and messages of one agent, in memory.

    Args:
        origin: index of the turn that spawned the agent; None for the main agent.
    """

    __slots__ = ("_origin", "_pending", "_returns", "last", "messages", "others", "tail", "turns")

    def __init__(self, origin: int | None = None) -> None:
        self._origin = origin
        self.turns: list[Turn] = []
        self.last: int | None = None
        """Index of the last turn; None before the first."""
        self.messages: list[Message] = []
        """What the policy continues next; replaced, never changed in place."""
        self.tail = TokenTail()
        self.others = OtherTurns()
        self._pending: list[Message] = []
        """The last messages that belong to no turn yet: answers of sub-agents."""
        self._returns: list[int] = []
        """The last turns of those sub-agents."""

    @property
    def spawned(self) -> bool:
        """Whether another agent spawned this one."""
        return self._origin is not None

    @property
    def prefix_messages(self) -> int:
        """How many messages precede the last observation."""
        last = self.turns[-1].observation if self.turns else []
        return len(self.messages) - len(last) - len(self._pending)

    def up_to(self, turn: int | None) -> list[Turn] | None:
        """Return the turns up to this one; None if it is not among them."""
        if turn is None:
            return []
        for position, own in enumerate(self.turns):
            if own.index == turn:
                return self.turns[: position + 1]
        return None

    def place(self, reply: Reply, attempt: int, *, broken: bool) -> Place:
        """Return where the turn of this reply belongs.

        Args:
            reply: the reply, whose context may differ from :attr:`messages`.
            attempt: index of the attempt.
            broken: the prompt's ids do not start with the last turn's.
        """
        before, last = self.messages, self.last
        own = bool(self.turns) and self.turns[-1].attempt == attempt
        edge: Edge = "continue" if own or not attempt else "alternative"
        returns = [*self._returns, *self.others.returning(last)]
        seen = before if reply.context is None else reply.context
        if not self.turns:
            return Place(self._origin, "spawn" if self.spawned else edge, None, list(seen), returns)
        rewritten: Edge = "rewrite" if edge == "continue" else edge
        if seen == before:
            edge = rewritten if broken else edge
            return Place(last, edge, None, list(self._pending), returns)
        recorded = self._recorded()
        pairs = zip(seen, recorded, strict=False)
        kept = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(seen), len(recorded)))
        return Place(last, rewritten, kept, seen[kept:], returns)

    def advance(self, turn: Turn, tail: TokenTail) -> None:
        """Add a recorded turn."""
        if not self.turns:
            kept = []
        elif self._pending or turn.kept is not None:
            kept = self._recorded()[: turn.kept]
        else:
            kept = self.messages
        self._pending, self._returns = [], []
        self.messages = [*kept, *turn.context, turn.message, *turn.observation]
        self.turns.append(turn)
        self.last = turn.index
        self.tail = tail

    def receive(self, answers: Sequence[Message], returns: Sequence[int]) -> None:
        """Add the answers of sub-agents, whose last turns are ``returns``."""
        self._returns += returns
        self._pending = [*self._pending, *answers]
        self.messages = [*self.messages, *answers]

    def _recorded(self) -> list[Message]:
        return self.messages[: len(self.messages) - len(self._pending)]

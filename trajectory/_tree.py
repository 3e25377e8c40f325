"""The session tree: all turns of a session, and the context of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from trajgym.trajectory._codec import decode, to_jsonable
from trajgym.trajectory._errors import InvalidSession
from trajgym.trajectory._html import tree_html
from trajgym.trajectory._records import Attempt, SessionRecord, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trajgym.trajectory._messages import Message
    from trajgym.trajectory._tokens import ImageRef, IntArray, TurnTokens

__all__ = ["SessionTree"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, repr=False)
class SessionTree:
    """A session's record, its turns in order of acknowledgement, and its attempts.

    The constructor checks topology; :meth:`sequence` and :meth:`conversation` undo the deltas.

    Args:
        record: the session's record.
        turns: ``turns[i].index == i``.
        attempts: ``attempts[k].index == k``.

    Raises:
        InvalidSession: indices have gaps, a parent comes after its child, an edge kind is not
            possible where it is used, or a delta keeps more than its base has.
    """

    record: SessionRecord
    turns: Sequence[Turn]
    attempts: Sequence[Attempt]

    def __repr__(self) -> str:
        ends = ", ".join(
            str(a.status) + (f" {a.outcome.score:g}" if a.outcome is not None else "")
            for a in self.attempts
        )
        return (
            f"<SessionTree {self.record.id}: task {self.record.task}, {len(self.turns)} turns, "
            f"{ends}>"
        )

    def _repr_html_(self) -> str:
        return tree_html(self)

    def __post_init__(self) -> None:
        for i, turn in enumerate(self.turns):
            if turn.index != i:
                raise InvalidSession(f"session {self.record.id}: turn {i} has index {turn.index}")
            self._check_edge(turn)
        for k, attempt in enumerate(self.attempts):
            if attempt.index != k:
                raise InvalidSession(
                    f"session {self.record.id}: attempt {k} has index {attempt.index}",
                )
            if attempt.leaf is not None and not 0 <= attempt.leaf < len(self.turns):
                raise InvalidSession(
                    f"session {self.record.id}: attempt {k} ends at turn {attempt.leaf}, which is "
                    "not recorded",
                )

    def _check_edge(self, turn: Turn) -> None:
        where = f"session {self.record.id}: turn {turn.index}"
        for returned in turn.returns:
            if not 0 <= returned < turn.index or self.turns[returned].agent == turn.agent:
                raise InvalidSession(
                    f"{where}: turn {returned} can't return to it: it must come earlier and belong "
                    "to another agent",
                )
        if not 0 <= turn.attempt < len(self.attempts):
            raise InvalidSession(f"{where}: attempt {turn.attempt} is not recorded")
        if turn.parent is None:
            if turn.edge not in {"continue", "alternative"}:
                raise InvalidSession(f"{where}: a {turn.edge} edge needs a parent")
            return
        if not 0 <= turn.parent < turn.index:
            raise InvalidSession(f"{where}: parent {turn.parent} does not come before it")
        same_agent = self.turns[turn.parent].agent == turn.agent
        if (turn.edge in {"spawn", "return"}) == same_agent:
            raise InvalidSession(
                f"{where}: a {turn.edge} edge from agent {self.turns[turn.parent].agent!r} to "
                f"{turn.agent!r}; only spawn and return change the agent",
            )
        if turn.edge == "return" and self.base(turn) is None:
            raise InvalidSession(f"{where}: return to {turn.agent!r}, which no ancestor belongs to")

    def base(self, turn: Turn) -> Turn | None:
        """Return the turn that this turn's deltas refer to, None if it starts a conversation."""
        if turn.parent is None or turn.edge == "spawn":
            return None
        base = self.turns[turn.parent]
        while base.agent != turn.agent:
            if base.parent is None:
                return None
            base = self.turns[base.parent]
        return base

    def context(self, turn: Turn) -> list[Message]:
        """Return all messages that the policy was shown at this turn."""
        base = self.base(turn)
        if base is None:
            return list(turn.context)
        return [*self.conversation(base)[: turn.kept], *turn.context]

    def conversation(self, turn: Turn) -> list[Message]:
        """Return the messages up to and including this turn's message and observation."""
        chain: list[Turn] = []
        current: Turn | None = turn
        while current is not None:
            chain.append(current)
            current = self.base(current)
        messages: list[Message] = []
        for link in reversed(chain):
            if link.kept is not None:
                del messages[link.kept :]
            messages += [*link.context, link.message, *link.observation]
        return messages

    def prompt(self, turn: Turn) -> IntArray:
        """Return int32 ``[P]``: the prompt ids that the engine received at this exact turn.

        Raises:
            InvalidSession: the turn is a text turn, or its base is one.
        """
        tokens = self._tokens(turn)
        pieces, needed = [tokens.prompt_ids], tokens.prompt_kept
        # Not recursive, because a conversation can have more turns than Python allows calls.
        while needed:
            base = self.base(turn)
            end = 0 if base is None else self._tokens(base).end
            if base is None or needed > end:
                raise InvalidSession(
                    f"session {self.record.id}: turn {turn.index} keeps {needed} ids of a base "
                    f"that has {end}",
                )
            tokens = self._tokens(base)
            own = max(0, needed - tokens.prompt_kept)
            pieces += [tokens.response_ids[: max(0, own - tokens.prompt_ids.size)]]
            pieces += [tokens.prompt_ids[:own]]
            turn, needed = base, min(needed, tokens.prompt_kept)
        return np.concatenate(pieces[::-1])

    def _tokens(self, turn: Turn) -> TurnTokens:
        if turn.tokens is None:
            raise InvalidSession(
                f"session {self.record.id}: turn {turn.index} is a text turn: it has no ids",
            )
        return turn.tokens

    def sequence(self, turn: Turn) -> IntArray:
        """Return int32 ``[P + N]``: prompt and response ids of this exact turn."""
        prompt = self.prompt(turn)
        assert turn.tokens is not None
        return np.concatenate([prompt, turn.tokens.response_ids])

    def images(self, turn: Turn) -> list[ImageRef]:
        """Return the images of this exact turn's whole prompt."""
        found: list[ImageRef] = []
        limit: int | None = None
        current: Turn | None = turn
        while current is not None and (tokens := current.tokens) is not None:
            kept = tokens.prompt_kept
            own = [image.moved(kept) for image in tokens.images]
            found[:0] = [image for image in own if limit is None or image.end <= limit]
            limit = kept if limit is None else min(kept, limit)
            current = self.base(current) if limit else None
        return found

    def path(self, turn: Turn) -> list[Turn]:
        """Return the trajectory that ends at ``turn``, root first."""
        path = [turn]
        while (parent := path[-1].parent) is not None:
            path.append(self.turns[parent])
        return path[::-1]

    def trajectory(self, attempt: Attempt) -> list[Turn]:
        """Return the turns of an attempt, root first; empty if it recorded none."""
        return [] if attempt.leaf is None else self.path(self.turns[attempt.leaf])

    def children(self) -> list[list[int]]:
        """Return, for each turn, the indices of its children in order."""
        children: list[list[int]] = [[] for _ in self.turns]
        for turn in self.turns:
            if turn.parent is not None:
                children[turn.parent].append(turn.index)
        return children

    @property
    def exact(self) -> bool:
        """True if there is a turn, and all turns have the engine's ids.

        Turns of simulated users don't count.
        """
        own = [turn for turn in self.turns if not turn.simulated]
        return bool(own) and all(turn.exact for turn in own)

    def to_json(self) -> dict[str, Any]:
        """Return the whole session as JSON values; :meth:`from_json` reverses it exactly."""
        return {
            "session": to_jsonable(self.record),
            "turns": [to_jsonable(turn) for turn in self.turns],
            "attempts": [to_jsonable(attempt) for attempt in self.attempts],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SessionTree:
        """Read the form that :meth:`to_json` returns.

        Raises:
            InvalidInput: a part is missing or malformed; the message names the field.
            InvalidSession: the turns do not form a tree.
        """
        if missing := {"session", "turns", "attempts"} - set(data):
            raise InvalidSession(f"session JSON lacks {sorted(missing)}")
        return cls(
            decode(SessionRecord, json.dumps(data["session"])),
            _many(Turn, data["turns"]),
            _many(Attempt, data["attempts"]),
        )


def _many(kind: type[_T], items: Iterable[Any]) -> list[_T]:
    return [decode(kind, json.dumps(item)) for item in items]

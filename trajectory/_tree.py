"""The session tree: all turns of a session, and what each of them saw."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from trajgym.trajectory._codec import decode, to_jsonable
from trajgym.trajectory._errors import InvalidSession
from trajgym.trajectory._records import Attempt, SessionRecord, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trajgym.trajectory._messages import Message
    from trajgym.trajectory._tokens import ImageRef, IntArray

__all__ = ["SessionTree"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SessionTree:
    """A session's head, its turns in order of acknowledgement, and its attempts.

    The constructor checks topology; :meth:`sequence` and :meth:`conversation` undo the deltas.

    Args:
        record: the head.
        turns: ``turns[i].index == i``.
        attempts: ``attempts[k].index == k``.

    Raises:
        InvalidSession: indices have gaps, a parent comes later, an edge does not fit its place, or
            a delta keeps more than its base holds.
    """

    record: SessionRecord
    turns: Sequence[Turn]
    attempts: Sequence[Attempt]

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
        """Return the turn whose conversation this turn's deltas refer to, None if it starts one."""
        if turn.parent is None or turn.edge == "spawn":
            return None
        base = self.turns[turn.parent]
        while base.agent != turn.agent:
            if base.parent is None:
                return None
            base = self.turns[base.parent]
        return base

    def context(self, turn: Turn) -> list[Message]:
        """Return every message that the policy was shown at this turn."""
        base = self.base(turn)
        if base is None:
            return list(turn.context)
        return [*self.conversation(base)[: turn.kept], *turn.context]

    def conversation(self, turn: Turn) -> list[Message]:
        """Return the messages up to and including this turn's answer and observation."""
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
        """Return int32 ``[P]``: the ids that the engine was given at this exact turn.

        Raises:
            InvalidSession: the turn is a text turn, or its base is one.
        """
        tokens = turn.tokens
        if tokens is None:
            raise InvalidSession(
                f"session {self.record.id}: turn {turn.index} is a text turn: it has no ids",
            )
        if tokens.prompt_kept == 0:
            return tokens.prompt_ids
        base = self.base(turn)
        kept = np.zeros(0, np.int32) if base is None else self.sequence(base)
        if tokens.prompt_kept > kept.size:
            raise InvalidSession(
                f"session {self.record.id}: turn {turn.index} keeps {tokens.prompt_kept} ids of "
                f"a base that has {kept.size}",
            )
        return np.concatenate([kept[: tokens.prompt_kept], tokens.prompt_ids])

    def sequence(self, turn: Turn) -> IntArray:
        """Return int32 ``[P + N]``: prompt and response ids of this exact turn."""
        prompt = self.prompt(turn)
        assert turn.tokens is not None
        return np.concatenate([prompt, turn.tokens.response_ids])

    def images(self, turn: Turn) -> list[ImageRef]:
        """Return the images that the engine was given at this exact turn, over its whole prompt."""
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
        """Return the trajectory that ends at ``turn``: root first."""
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
        """True if every turn carries the engine's ids and there is at least one."""
        return bool(self.turns) and all(turn.exact for turn in self.turns)

    def to_json(self) -> dict[str, Any]:
        """Return the whole session as JSON values; :meth:`from_json` reverses it exactly."""
        return {
            "session": to_jsonable(self.record),
            "turns": [to_jsonable(turn) for turn in self.turns],
            "attempts": [to_jsonable(attempt) for attempt in self.attempts],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SessionTree:
        """Read the form that :meth:`to_json` writes.

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

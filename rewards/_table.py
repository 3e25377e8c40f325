"""The table of turns that derivers read: a struct of arrays over many session trees."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from trajgym.trajectory import InvalidInput, attempt_turns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.trajectory import Attempt, Group, SessionTree, Turn

__all__ = ["Doubles", "Flags", "Ints", "PrefixRule", "TurnTable"]

Doubles: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
PrefixRule: TypeAlias = Literal["mean", "sum"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnTable:
    """Every turn of some sessions, session after session, and the attempts that hold them.

    Arrays over the N turns, over the A attempts, and over the M memberships (one for each turn
    of each attempt, so a turn that rival attempts share has several). All are read-only.

    A turn or attempt is *scored* if its attempt ended scored, has an outcome, and its session has
    not left its group: only those count.

    Args:
        sessions: ids, in order.
        groups: ids of the sealed groups.
        starts: int64 ``[S + 1]``, where each session's turns start; turn ``i`` of session ``s``
            stands at ``starts[s] + i``.
        session: int64 ``[N]``, place in ``sessions``.
        group: int64 ``[N]``, place in ``groups``; -1 for none.
        turn: int64 ``[N]``, index in its session.
        parent: int64 ``[N]``, place of the causal parent in this table; -1 for none.
        depth: int64 ``[N]``, number of ancestors.
        attempt: int64 ``[N]``, index in its session of the attempt that recorded it.
        scored: bool ``[N]``.
        last: bool ``[N]``, the last turn of some attempt.
        env_reward: float64 ``[N]``, the environment's step reward, 0 where it gave none.
        calls_ok: int64 ``[N]``, tool calls that worked.
        calls_failed: int64 ``[N]``, tool calls with an error, bad arguments or a time-out.
        prompt_tokens: int64 ``[N]``, whole prompt, 0 if unknown.
        response_tokens: int64 ``[N]``, sampled and inserted tokens, 0 if unknown.
        attempt_session: int64 ``[A]``, place in ``sessions``.
        attempt_group: int64 ``[A]``, place in ``groups``; -1 for none.
        attempt_index: int64 ``[A]``, index in its session.
        attempt_leaf: int64 ``[A]``, place of its last turn in this table; -1 if it has none.
        attempt_scored: bool ``[A]``.
        attempt_score: float64 ``[A]``, the outcome's score; 0 where not scored.
        member_turn: int64 ``[M]``, place of a turn in this table.
        member_attempt: int64 ``[M]``, place of the attempt that it belongs to.
        digests: sha256 (hex) of each turn's observation, or None if they were not asked for.
    """

    sessions: tuple[str, ...]
    groups: tuple[str, ...]
    starts: Ints
    session: Ints
    group: Ints
    turn: Ints
    parent: Ints
    depth: Ints
    attempt: Ints
    scored: Flags
    last: Flags
    env_reward: Doubles
    calls_ok: Ints
    calls_failed: Ints
    prompt_tokens: Ints
    response_tokens: Ints
    attempt_session: Ints
    attempt_group: Ints
    attempt_index: Ints
    attempt_leaf: Ints
    attempt_scored: Flags
    attempt_score: Doubles
    member_turn: Ints
    member_attempt: Ints
    digests: tuple[str, ...] | None = None
    _places: dict[str, int] = field(default_factory=dict, repr=False)

    @classmethod
    def build(
        cls, groups: Iterable[Group], sessions: Iterable[SessionTree], *, digests: bool = False
    ) -> TurnTable:
        """Read sessions one by one into columns; the trees themselves are not kept.

        Args:
            groups: the sealed groups that the sessions belong to.
            sessions: complete session trees; sessions of no given group stand alone.
            digests: also digest every observation (needed by state-matching derivers; costs a
                canonical JSON and a hash per turn).

        Raises:
            InvalidInput: an open group, a session given twice, or a score that is not finite.
        """
        builder = _Builder(digests=digests)
        for group in groups:
            builder.add_group(group)
        for tree in sessions:
            builder.add_session(tree)
        return cls(**builder.columns())

    def __len__(self) -> int:
        return self.turn.size

    def place(self, session: str) -> slice | None:
        """Return where the turns of a session stand, None if it is not in the table."""
        found = self._places.get(session)
        return (
            None if found is None else slice(int(self.starts[found]), int(self.starts[found + 1]))
        )

    @property
    def observation(self) -> tuple[str, ...]:
        """Digest of each turn's observation.

        Raises:
            InvalidInput: the table was built without them.
        """
        if self.digests is None:
            raise InvalidInput("this table has no observation digests: build it with digests=True")
        return self.digests

    def spread(self, values: Doubles, rule: PrefixRule = "mean") -> Doubles:
        """Give each attempt's value to all of its turns.

        Args:
            values: float64 ``[A]``.
            rule: how the values of scored attempts that share a turn combine.

        Returns:
            float64 ``[N]``, 0 on turns of no scored attempt.
        """
        counted = self.attempt_scored[self.member_attempt]
        return self._combine(self.member_turn[counted], self.member_attempt[counted], values, rule)

    def at_leaves(self, values: Doubles, rule: PrefixRule = "mean") -> Doubles:
        """Give each attempt's value to its last turn alone; otherwise like :meth:`spread`."""
        attempts = np.flatnonzero(self.attempt_scored & (self.attempt_leaf >= 0))
        return self._combine(self.attempt_leaf[attempts], attempts, values, rule)

    def _combine(self, turns: Ints, attempts: Ints, values: Doubles, rule: PrefixRule) -> Doubles:
        summed = np.bincount(turns, weights=values[attempts], minlength=len(self))
        total = summed.astype(np.float64)
        if rule == "mean":
            total /= np.maximum(np.bincount(turns, minlength=len(self)), 1)
        return total


_FAILED_CALLS = frozenset({"error", "invalid", "timeout"})


class _Builder:
    """Collects the columns; a list per column until all sessions are read."""

    def __init__(self, *, digests: bool) -> None:
        self._groups: dict[str, int] = {}
        self._group_of: dict[str, int] = {}
        self._left: set[str] = set()
        self._places: dict[str, int] = {}
        self._turns: list[tuple[float, ...]] = []
        self._attempts: list[tuple[float, ...]] = []
        self._member_turn: list[int] = []
        self._member_attempt: list[int] = []
        self._starts = [0]
        self._digests: list[str] | None = [] if digests else None

    def add_group(self, group: Group) -> None:
        if not group.sealed:
            raise InvalidInput(
                f"group {group.id} is open: group statistics would change; seal it first",
            )
        code = self._groups.setdefault(group.id, len(self._groups))
        for member in group.members:
            self._group_of[member.session] = code
            if member.left:
                self._left.add(member.session)

    def add_session(self, tree: SessionTree) -> None:
        name = tree.record.id
        if self._places.setdefault(name, len(self._places)) != len(self._starts) - 1:
            raise InvalidInput(f"session {name} is given twice")
        start = self._starts[-1]
        group = self._group_of.get(name, -1)
        scored: set[int] = set()
        for attempt in tree.attempts:
            turns = attempt_turns(tree, attempt)
            counts = self._add_attempt(tree, attempt, group)
            self._member_turn += [start + index for index in turns]
            self._member_attempt += [len(self._attempts) - 1] * len(turns)
            if counts:
                scored.update(turns)
        depths: list[int] = []
        for turn in tree.turns:
            depths.append(0 if turn.parent is None else depths[turn.parent] + 1)
            self._add_turn(turn, group, depths[-1], scored=turn.index in scored)
        self._starts.append(start + len(tree.turns))

    def _add_attempt(self, tree: SessionTree, attempt: Attempt, group: int) -> bool:
        name, start = tree.record.id, self._starts[-1]
        outcome = attempt.outcome
        counts = attempt.status.scored and outcome is not None and name not in self._left
        score = outcome.score if outcome is not None and counts else 0.0
        if not math.isfinite(score):
            raise InvalidInput(
                f"session {name}: attempt {attempt.index} has the score {score}; scores are finite",
            )
        leaf = -1 if attempt.leaf is None else start + attempt.leaf
        place = len(self._starts) - 1
        self._attempts.append((place, group, attempt.index, leaf, counts, score))
        return counts

    def _add_turn(self, turn: Turn, group: int, depth: int, *, scored: bool) -> None:
        start = self._starts[-1]
        ok = sum(call.status == "ok" for call in turn.calls)
        failed = sum(call.status in _FAILED_CALLS for call in turn.calls)
        reward = 0.0 if turn.reward is None else turn.reward
        parent = -1 if turn.parent is None else start + turn.parent
        place = len(self._starts) - 1
        self._turns.append(
            (
                place,
                group,
                turn.index,
                parent,
                depth,
                turn.attempt,
                scored,
                reward,
                ok,
                failed,
                *_token_counts(turn),
            ),
        )
        if self._digests is not None:
            self._digests.append(turn.observation_digest)

    def columns(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        turns = _columns(self._turns, 12)
        attempts = _columns(self._attempts, 6)
        columns: dict[str, Any] = {
            "starts": np.array(self._starts, dtype=np.int64),
            "member_turn": np.array(self._member_turn, dtype=np.int64),
            "member_attempt": np.array(self._member_attempt, dtype=np.int64),
        }
        columns |= dict(zip(_TURN_COLUMNS, turns, strict=True))
        columns |= dict(zip(_ATTEMPT_COLUMNS, attempts, strict=True))
        for name, values in columns.items():
            columns[name] = values.astype(_DTYPES.get(name, np.int64))
        columns["last"] = _last(columns["attempt_leaf"], len(self._turns))
        for values in columns.values():
            values.flags.writeable = False
        columns["sessions"] = tuple(self._places)
        columns["groups"] = tuple(self._groups)
        columns["digests"] = None if self._digests is None else tuple(self._digests)
        columns["_places"] = self._places
        return columns


_TURN_COLUMNS = (
    "session",
    "group",
    "turn",
    "parent",
    "depth",
    "attempt",
    "scored",
    "env_reward",
    "calls_ok",
    "calls_failed",
    "prompt_tokens",
    "response_tokens",
)
_ATTEMPT_COLUMNS = (
    "attempt_session",
    "attempt_group",
    "attempt_index",
    "attempt_leaf",
    "attempt_scored",
    "attempt_score",
)
_DTYPES: dict[str, type[np.generic]] = {
    "scored": np.bool_,
    "env_reward": np.float64,
    "attempt_scored": np.bool_,
    "attempt_score": np.float64,
}


def _columns(rows: list[tuple[float, ...]], width: int) -> npt.NDArray[np.float64]:
    # Indices stay exact: a float64 holds every integer below 2**53.
    return np.array(rows, dtype=np.float64).reshape(-1, width).T


def _last(leaves: Ints, n: int) -> Flags:
    last = np.zeros(n, dtype=np.bool_)
    last[leaves[leaves >= 0]] = True
    return last


def _token_counts(turn: Turn) -> tuple[int, int]:
    tokens = turn.tokens
    if tokens is not None:
        return tokens.prompt_kept + tokens.prompt_ids.size, tokens.response_ids.size
    if turn.usage is not None:
        return turn.usage.prompt_tokens, turn.usage.completion_tokens
    return 0, 0

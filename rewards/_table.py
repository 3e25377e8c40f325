"""The table of turns that derivers read: a struct of arrays over many session trees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.trajectory import Group, SessionTree

__all__ = ["SPAN_KINDS", "Doubles", "Flags", "Ints", "PrefixRule", "Texts", "TurnTable"]

Doubles: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
PrefixRule: TypeAlias = Literal["mean", "sum"]

SPAN_KINDS = ("tool_call", "reasoning", "fold", "answer")
"""What the codes in ``span_kind`` stand for."""


@dataclass(frozen=True, slots=True)
class Texts:
    """What similarity-based derivers compare, one entry per turn.

    Args:
        action: what the policy did: the signal ``action``, else its tool calls (name and
            arguments, one per line), else its text.
        expert: what the expert did: the signal ``expert_action``, else the entry for this depth
            in the outcome detail ``expert_actions``; None if there is none.
        state: what the policy saw before it acted, as text.
    """

    action: tuple[str, ...]
    expert: tuple[str | None, ...]
    state: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnTable:
    """Every turn of some sessions, session after session, and the attempts that hold them.

    Arrays over the N turns, over the A attempts, over the M memberships (one for each turn of
    each attempt, so a turn that rival attempts share has several), and over the K spans. All are
    read-only, and none holds a NaN: what is unknown has a flag or a count beside it.

    A turn or attempt is *scored* if its attempt ended scored (completed or truncated), has an
    outcome, and its session has not left its group: only those count.

    Args:
        sessions: ids, in order.
        groups: ids of the sealed groups.
        starts: int64 ``[S + 1]``, where each session's turns start; turn ``i`` of session ``s``
            stands at ``starts[s] + i``.
        session_order: int64 ``[S]``, rank of each session by sample number and id: an order that
            does not depend on how the table was put together.
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
        exact: bool ``[N]``, the turn has the engine's ids and log-probs.
        surprisal: float64 ``[N]``, mean of ``-log p`` (nats) over the turn's sampled tokens; 0
            where not exact.
        format_ok: bool ``[N]``, the signal ``format_ok``; without it, no call was invalid.
        answers: int64 ``[N]``, the signal ``answers``; without it, closed ``<answer>`` blocks in
            the text, and -1 if opening and closing tags don't match.
        value: float64 ``[N]``, the critic's value before the turn (signal ``value``), else 0.
        has_value: bool ``[N]``.
        gold_before: float64 ``[N]``, mean log-prob (nats) of the gold answer's tokens before the
            turn: the parent's ``gold_after``, or the signal ``gold_logprob_before``; else 0.
        gold_after: float64 ``[N]``, the same after the turn: the signal ``gold_logprob``, a mean
            or a list to take the mean of; else 0.
        has_gold: bool ``[N]``, both are known.
        span_turn: int64 ``[K]``, place in this table of the turn that each span lies in; sorted.
        span_kind: int64 ``[K]``, place in `SPAN_KINDS`.
        span_start: int64 ``[K]``, first response id.
        span_end: int64 ``[K]``, one past the last.
        span_ok: int64 ``[K]``, for tool calls 1 if it worked and 0 if not; -1 if unknown.
        span_starts: int64 ``[N + 1]``, where each turn's spans start.
        attempt_session: int64 ``[A]``, place in ``sessions``.
        attempt_group: int64 ``[A]``, place in ``groups``; -1 for none.
        attempt_index: int64 ``[A]``, index in its session.
        attempt_leaf: int64 ``[A]``, place of its last turn in this table; -1 if it has none.
        attempt_scored: bool ``[A]``.
        attempt_score: float64 ``[A]``, the outcome's score; 0 where not scored.
        attempt_passed: bool ``[A]``, False where not scored.
        attempt_direct: float64 ``[A]``, tokens without memory folding (outcome detail
            ``len_direct``); 0 if unknown.
        attempt_folded: float64 ``[A]``, tokens with it (``len_fold``); 0 if unknown.
        member_turn: int64 ``[M]``, place of a turn in this table; an attempt's in order.
        member_attempt: int64 ``[M]``, place of the attempt that it belongs to; sorted.
        member_starts: int64 ``[A + 1]``, where each attempt's memberships start.
        digests: sha256 (hex) of each turn's observation, or None if they were not asked for.
        state_codes: int64 ``[N]``, equal where the policy saw the same before it acted, or None.
        texts: see `Texts`, or None if they were not asked for.
    """

    sessions: tuple[str, ...]
    groups: tuple[str, ...]
    starts: Ints
    session_order: Ints
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
    exact: Flags
    surprisal: Doubles
    format_ok: Flags
    answers: Ints
    value: Doubles
    has_value: Flags
    gold_before: Doubles
    gold_after: Doubles
    has_gold: Flags
    span_turn: Ints
    span_kind: Ints
    span_start: Ints
    span_end: Ints
    span_ok: Ints
    span_starts: Ints
    attempt_session: Ints
    attempt_group: Ints
    attempt_index: Ints
    attempt_leaf: Ints
    attempt_scored: Flags
    attempt_score: Doubles
    attempt_passed: Flags
    attempt_direct: Doubles
    attempt_folded: Doubles
    member_turn: Ints
    member_attempt: Ints
    member_starts: Ints
    digests: tuple[str, ...] | None = None
    state_codes: Ints | None = None
    texts: Texts | None = None
    _places: dict[str, int] = field(default_factory=dict, repr=False)

    @classmethod
    def build(
        cls,
        groups: Iterable[Group],
        sessions: Iterable[SessionTree],
        *,
        digests: bool = False,
        texts: bool = False,
    ) -> TurnTable:
        """Read sessions one by one into columns; the trees themselves are not kept.

        Args:
            groups: the sealed groups that the sessions belong to.
            sessions: complete session trees; sessions of no given group stand alone.
            digests: also digest every observation and state (needed by state-matching derivers;
                costs two canonical JSONs and hashes per turn).
            texts: also keep the texts of actions, experts' actions and states (needed by
                similarity-based derivers).

        Raises:
            InvalidInput: an open group, a session given twice, or a score or signal that is not
                finite or of the wrong type.
        """
        from trajgym.rewards._build import TableBuilder

        builder = TableBuilder(digests=digests, texts=texts)
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

    @property
    def state(self) -> Ints:
        """int64 ``[N]``: code of what the policy saw before it acted (its anchor state).

        That is the parent turn's observation and what is new in this turn's context; ids of tool
        calls do not count.

        Raises:
            InvalidInput: the table was built without them.
        """
        if self.state_codes is None:
            raise InvalidInput("this table has no states: build it with digests=True")
        return self.state_codes

    @property
    def text(self) -> Texts:
        """Texts of actions and states.

        Raises:
            InvalidInput: the table was built without them.
        """
        if self.texts is None:
            raise InvalidInput("this table has no texts: build it with texts=True")
        return self.texts

    @property
    def member_counted(self) -> Flags:
        """Bool ``[M]``: memberships of scored attempts."""
        return np.repeat(self.attempt_scored, np.diff(self.member_starts))

    def spread(self, values: Doubles, rule: PrefixRule = "mean") -> Doubles:
        """Give each attempt's value to all of its turns.

        Args:
            values: float64 ``[A]``.
            rule: how the values of scored attempts that share a turn combine.

        Returns:
            float64 ``[N]``, 0 on turns of no scored attempt.
        """
        return self.combine(np.repeat(values, np.diff(self.member_starts)), rule)

    def combine(self, values: Doubles, rule: PrefixRule = "mean") -> Doubles:
        """Bring values of memberships to their turns; otherwise like :meth:`spread`.

        Args:
            values: float64 ``[M]``.
            rule: how the values of scored attempts that share a turn combine.
        """
        counted = self.member_counted
        return self._combine(self.member_turn[counted], values[counted], rule)

    def at_leaves(self, values: Doubles, rule: PrefixRule = "mean") -> Doubles:
        """Give each attempt's value to its last turn alone; otherwise like :meth:`spread`."""
        attempts = np.flatnonzero(self.attempt_scored & (self.attempt_leaf >= 0))
        return self._combine(self.attempt_leaf[attempts], values[attempts], rule)

    def total(self, values: Doubles) -> Doubles:
        """Return float64 ``[A]``: the sum of ``values`` (``[M]``) over each attempt."""
        summed = np.bincount(
            self.member_attempt, weights=values, minlength=self.attempt_scored.size
        )
        return summed.astype(np.float64)

    def _combine(self, turns: Ints, values: Doubles, rule: PrefixRule) -> Doubles:
        summed = np.bincount(turns, weights=values, minlength=len(self))
        total = summed.astype(np.float64)
        if rule == "mean":
            total /= np.maximum(np.bincount(turns, minlength=len(self)), 1)
        return total

"""The table of turns that derivers read: a struct of arrays over many session trees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trajgym.trajectory import Group, SessionTree

__all__ = [
    "SPAN_KINDS",
    "Doubles",
    "Flags",
    "Ints",
    "PrefixRule",
    "Scope",
    "Signal",
    "Texts",
    "TurnTable",
]

Doubles: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
PrefixRule: TypeAlias = Literal["mean", "sum"]
Scope: TypeAlias = Literal["session", "group", "run"]

SPAN_KINDS = ("tool_call", "reasoning", "fold", "answer")
"""The span kinds that the codes in ``span_kind`` refer to."""


class Signal(NamedTuple):
    """A numeric signal of the turns.

    A recorded signal is a number, or a list with one number per response id. A number applies to
    the turn and all of its spans; of a list, turn and spans get the mean over their sampled ids.
    """

    values: Doubles
    """float64 ``[N]``, value of each turn; 0 if it has none."""
    known: Flags
    """Bool ``[N]``."""
    spans: Doubles
    """float64 ``[K]``, value of each span; 0 if its turn has none."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts that similarity-based derivers compare, one entry per turn.

    Args:
        action: the policy's action: the signal ``action``, else its tool calls (name and
            arguments, one per line), else its text.
        expert: the expert's action: the signal ``expert_action``, else the entry for this depth
            in the outcome detail ``expert_actions``; None if there is none.
        state: the text that the policy was shown before it acted.
    """

    action: tuple[str, ...]
    expert: tuple[str | None, ...]
    state: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnTable:
    """All turns of some sessions, in the order of the sessions, and the attempts they belong to.

    The arrays are over the N turns, the A attempts, the M memberships (one for each turn of each
    attempt, so a turn shared by several attempts has several), and the K spans. They are
    read-only and contain no NaN; unknown values have a flag or a documented default.

    An attempt is *scored* if it was completed or truncated, has an outcome, and its session has not
    left its group; a turn is scored if one of its attempts is. Only those count.

    Args:
        sessions: ids, in order.
        groups: ids of the sealed groups.
        starts: int64 ``[S + 1]``, where each session's turns start; turn ``i`` of session ``s``
            is at ``starts[s] + i``.
        session_order: int64 ``[S]``, rank of each session by sample number and id: an order that
            does not depend on how the table was put together.
        session: int64 ``[N]``, index in ``sessions``.
        group: int64 ``[N]``, index in ``groups``; -1 for none.
        turn: int64 ``[N]``, index in its session.
        parent: int64 ``[N]``, row of the causal parent in this table; -1 for none.
        depth: int64 ``[N]``, number of ancestors.
        attempt: int64 ``[N]``, index in its session of the attempt that recorded it.
        scored: bool ``[N]``.
        last: bool ``[N]``, the last turn of some attempt.
        env_reward: float64 ``[N]``, the environment's step reward, 0 where it gave none.
        calls_ok: int64 ``[N]``, tool calls that succeeded.
        calls_failed: int64 ``[N]``, tool calls with an error, invalid arguments or a timeout.
        prompt_tokens: int64 ``[N]``, tokens of the whole prompt, 0 if unknown.
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
        span_turn: int64 ``[K]``, row in this table of each span's turn; sorted.
        span_kind: int64 ``[K]``, index in `SPAN_KINDS`.
        span_start: int64 ``[K]``, first response id.
        span_end: int64 ``[K]``, one past the last response id.
        span_ok: int64 ``[K]``, for tool calls 1 if it succeeded and 0 if not; -1 if unknown.
        span_starts: int64 ``[N + 1]``, where each turn's spans start.
        attempt_session: int64 ``[A]``, index in ``sessions``.
        attempt_group: int64 ``[A]``, index in ``groups``; -1 for none.
        attempt_index: int64 ``[A]``, index in its session.
        attempt_leaf: int64 ``[A]``, row of its last turn in this table; -1 if it has none.
        attempt_scored: bool ``[A]``.
        attempt_score: float64 ``[A]``, the outcome's score; 0 where not scored.
        attempt_passed: bool ``[A]``, False where not scored.
        attempt_direct: float64 ``[A]``, tokens without memory folding (outcome detail
            ``len_direct``); 0 if unknown.
        attempt_folded: float64 ``[A]``, tokens with it (``len_fold``); 0 if unknown.
        member_turn: int64 ``[M]``, row of a turn in this table; in order within an attempt.
        member_attempt: int64 ``[M]``, index of the attempt that it belongs to; sorted.
        member_starts: int64 ``[A + 1]``, where each attempt's memberships start.
        digests: sha256 (hex) of each turn's observation, or None if they were not requested.
        state_codes: int64 ``[N]``, equal for turns before which the policy saw the same, or None.
        texts: see `Texts`; None if they were not requested.
        signal_names: the requested signals; see :meth:`signal`.
        signal_values: float64 ``[Q, N]``.
        signal_known: bool ``[Q, N]``.
        signal_spans: float64 ``[Q, K]``.
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
    signal_names: tuple[str, ...] = ()
    signal_values: Doubles | None = None
    signal_known: Flags | None = None
    signal_spans: Doubles | None = None
    _places: dict[str, int] = field(default_factory=dict, repr=False)

    @classmethod
    def build(
        cls,
        groups: Iterable[Group],
        sessions: Iterable[SessionTree],
        *,
        digests: bool = False,
        texts: bool = False,
        signals: Sequence[str] = (),
    ) -> TurnTable:
        """Build the table from sessions, which are read one at a time and not kept.

        Args:
            groups: the sealed groups that the sessions belong to.
            sessions: complete session trees; sessions of none of these groups have no group.
            digests: also digest every observation and state (needed by state-matching derivers;
                encodes and hashes two canonical JSON texts per turn).
            texts: also keep the texts of actions, experts' actions and states (needed by
                similarity-based derivers).
            signals: names of signals to include as numbers (see `Signal`).

        Raises:
            InvalidInput: a group is open, a session is given twice, or a score or signal is not
                finite or has the wrong type.
        """
        from trajgym.rewards._build import TableBuilder

        builder = TableBuilder(digests=digests, texts=texts, signals=signals)
        for group in groups:
            builder.add_group(group)
        for tree in sessions:
            builder.add_session(tree)
        return cls(**builder.columns())

    def __len__(self) -> int:
        return self.turn.size

    def place(self, session: str) -> slice | None:
        """Return the rows of a session's turns, None if it is not in the table."""
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
        """int64 ``[N]``: code of the state that the policy saw before it acted (anchor state).

        The state is the parent turn's observation and what is new in this turn's context; ids of
        tool calls are ignored.

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

    def signal(self, name: str) -> Signal:
        """Return a signal of the turns and spans.

        Raises:
            InvalidInput: the table was built without it.
        """
        if name not in self.signal_names or self.signal_values is None:
            raise InvalidInput(
                f"this table lacks signal {name!r}: build it with signals=[{name!r}]"
            )
        assert self.signal_known is not None
        assert self.signal_spans is not None
        at = self.signal_names.index(name)
        return Signal(self.signal_values[at], self.signal_known[at], self.signal_spans[at])

    @property
    def member_counted(self) -> Flags:
        """Bool ``[M]``: memberships of scored attempts."""
        return np.repeat(self.attempt_scored, np.diff(self.member_starts))

    def spread(self, values: Doubles, rule: PrefixRule = "mean") -> Doubles:
        """Assign each attempt's value to all of its turns.

        Args:
            values: float64 ``[A]``.
            rule: how the values of scored attempts that share a turn combine.

        Returns:
            float64 ``[N]``, 0 on turns of no scored attempt.
        """
        return self.combine(np.repeat(values, np.diff(self.member_starts)), rule)

    def combine(self, values: Doubles, rule: PrefixRule = "mean") -> Doubles:
        """Combine values of memberships into values of turns; otherwise like :meth:`spread`.

        Args:
            values: float64 ``[M]``.
            rule: how the values of scored attempts that share a turn combine.
        """
        counted = self.member_counted
        return self._combine(self.member_turn[counted], values[counted], rule)

    def at_leaves(self, values: Doubles, rule: PrefixRule = "mean") -> Doubles:
        """Assign each attempt's value to its last turn only; otherwise like :meth:`spread`."""
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

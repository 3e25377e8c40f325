"""Building the table of turns, one session at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trajgym.rewards import _turn_values
from trajgym.rewards._table import SPAN_KINDS, Flags, Ints, Texts
from trajgym.trajectory import InvalidInput, attempt_turns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.trajectory import Attempt, Group, SessionTree, Turn

__all__ = ["TableBuilder"]

_FAILED_CALLS = frozenset({"error", "invalid", "timeout"})
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
    "exact",
    "surprisal",
    "format_ok",
    "answers",
    "value",
    "has_value",
    "gold_before",
    "gold_after",
    "has_gold",
)
_ATTEMPT_COLUMNS = (
    "attempt_session",
    "attempt_group",
    "attempt_index",
    "attempt_leaf",
    "attempt_scored",
    "attempt_score",
    "attempt_passed",
    "attempt_direct",
    "attempt_folded",
)
_SPAN_COLUMNS = ("span_turn", "span_kind", "span_start", "span_end", "span_ok")
_DTYPES: dict[str, type[np.generic]] = {
    **dict.fromkeys(
        ("scored", "exact", "format_ok", "has_value", "has_gold"),
        np.bool_,
    ),
    **dict.fromkeys(("attempt_scored", "attempt_passed"), np.bool_),
    **dict.fromkeys(
        ("env_reward", "surprisal", "value", "gold_before", "gold_after"),
        np.float64,
    ),
    **dict.fromkeys(("attempt_score", "attempt_direct", "attempt_folded"), np.float64),
}


class TableBuilder:
    """Collects the table's columns in lists until all sessions have been read."""

    def __init__(self, *, digests: bool, texts: bool, signals: Sequence[str]) -> None:
        self._groups: dict[str, int] = {}
        self._group_of: dict[str, int] = {}
        self._left: set[str] = set()
        self._places: dict[str, int] = {}
        self._samples: list[int] = []
        self._turns: list[tuple[float, ...]] = []
        self._attempts: list[tuple[float, ...]] = []
        self._spans: list[tuple[float, ...]] = []
        self._gold_after: list[float | None] = []
        self._member_turn: list[int] = []
        self._member_starts = [0]
        self._starts = [0]
        self._digests: list[str] | None = [] if digests else None
        self._states: dict[bytes, int] = {}
        self._state_codes: list[int] = []
        self._texts: list[tuple[str, str | None, str]] | None = [] if texts else None
        self._signal_names = tuple(signals)
        self._signals: list[list[float | None]] = [[] for _ in signals]
        self._span_signals: list[list[float]] = [[] for _ in signals]

    def add_group(self, group: Group) -> None:
        """Add a group and its members.

        Raises:
            InvalidInput: the group is open.
        """
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
        """Add a session's turns and attempts.

        Raises:
            InvalidInput: the session was added before, or a score or signal is not a finite number.
        """
        name = tree.record.id
        if self._places.setdefault(name, len(self._places)) != len(self._starts) - 1:
            raise InvalidInput(f"session {name} is given twice")
        self._samples.append(tree.record.sample)
        start = self._starts[-1]
        group = self._group_of.get(name, -1)
        scored: set[int] = set()
        for attempt in tree.attempts:
            turns = attempt_turns(tree, attempt)
            counts = self._add_attempt(tree, attempt, group)
            self._member_turn += [start + index for index in turns]
            self._member_starts.append(len(self._member_turn))
            if counts:
                scored.update(turns)
        depths: list[int] = []
        for turn in tree.turns:
            depths.append(0 if turn.parent is None else depths[turn.parent] + 1)
            self._add_turn(turn, group, depths[-1], name, scored=turn.index in scored)
            self._add_spans(turn)
            self._add_asked(tree, turn, depths[-1])
            self._add_signals(turn, f"session {name}: turn {turn.index}")
        self._starts.append(start + len(tree.turns))

    def _add_attempt(self, tree: SessionTree, attempt: Attempt, group: int) -> bool:
        name, start = tree.record.id, self._starts[-1]
        outcome = attempt.outcome
        counts = attempt.status.scored and outcome is not None and name not in self._left
        score = outcome.score if outcome is not None and counts else 0.0
        if not math.isfinite(score):
            raise InvalidInput(
                f"session {name}: attempt {attempt.index} has score {score}; scores must be finite",
            )
        details = outcome.details if outcome is not None else {}
        lengths = [float(details.get(key) or 0.0) for key in ("len_direct", "len_fold")]
        if not all(math.isfinite(n) and n >= 0 for n in lengths):
            raise InvalidInput(
                f"session {name}: attempt {attempt.index} has len_direct and len_fold {lengths}; "
                "expected numbers of tokens",
            )
        leaf = -1 if attempt.leaf is None else start + attempt.leaf
        passed = counts and outcome is not None and outcome.passed
        place = len(self._starts) - 1
        self._attempts.append(
            (place, group, attempt.index, leaf, counts, score, passed, *lengths),
        )
        return counts

    def _add_turn(self, turn: Turn, group: int, depth: int, name: str, *, scored: bool) -> None:
        start = self._starts[-1]
        where = f"session {name}: turn {turn.index}"
        value = _turn_values.number(turn, "value", where)
        ok = sum(call.status == "ok" for call in turn.calls)
        failed = sum(call.status in _FAILED_CALLS for call in turn.calls)
        reward = 0.0 if turn.reward is None else turn.reward
        if not math.isfinite(reward):
            raise InvalidInput(f"{where} has reward {reward}; rewards must be finite")
        self._turns.append(
            (
                len(self._starts) - 1,
                group,
                turn.index,
                -1 if turn.parent is None else start + turn.parent,
                depth,
                turn.attempt,
                scored,
                reward,
                ok,
                failed,
                *_turn_values.token_counts(turn),
                turn.exact,
                _turn_values.surprisal(turn),
                _turn_values.format_ok(turn),
                _turn_values.answer_count(turn),
                value or 0.0,
                value is not None,
                *self._gold(turn, where),
            ),
        )

    def _gold(self, turn: Turn, where: str) -> tuple[float, float, bool]:
        """Return the gold answer's log-prob before and after the turn, and if both are known."""
        after = _turn_values.number(turn, "gold_logprob", where)
        before = _turn_values.number(turn, "gold_logprob_before", where)
        if before is None and turn.parent is not None:
            before = self._gold_after[self._starts[-1] + turn.parent]
        self._gold_after.append(after)
        return (0.0, 0.0, False) if before is None or after is None else (before, after, True)

    def _add_spans(self, turn: Turn) -> None:
        if turn.tokens is None:
            return
        calls = {call.call_id: call.status == "ok" for call in turn.calls}
        place = len(self._turns) - 1
        for span in turn.tokens.spans:
            ok = calls.get(span.call_id or "", -1)
            kind = SPAN_KINDS.index(span.kind)
            self._spans.append((place, kind, span.start, span.end, ok))

    def _add_asked(self, tree: SessionTree, turn: Turn, depth: int) -> None:
        if self._digests is not None:
            self._digests.append(turn.observation_digest)
            digest = _turn_values.state_digest(tree, turn)
            self._state_codes.append(self._states.setdefault(digest, len(self._states)))
        if self._texts is not None:
            expert = _turn_values.expert_text(turn, depth, tree.attempts[turn.attempt])
            self._texts.append(
                (_turn_values.action_text(turn), expert, _turn_values.state_text(tree, turn))
            )

    def _add_signals(self, turn: Turn, where: str) -> None:
        for at, name in enumerate(self._signal_names):
            value, spans = _turn_values.signal(turn, name, where)
            self._signals[at].append(value)
            self._span_signals[at] += spans

    def dump(self) -> dict[str, Any]:
        """Return the only session that was added, as JSON values for :meth:`load`."""
        (name,) = self._places
        states = list(self._states)
        return {
            "session": name,
            "sample": self._samples[0],
            "turns": self._turns,
            "attempts": self._attempts,
            "spans": self._spans,
            "member_turn": self._member_turn,
            "member_starts": self._member_starts,
            "digests": self._digests,
            "states": [states[code].hex() for code in self._state_codes],
            "texts": self._texts,
            "signal_names": self._signal_names,
            "signals": self._signals,
            "span_signals": self._span_signals,
        }

    def load(self, packed: Mapping[str, Any]) -> None:
        """Add a session that another builder dumped; groups are those of this builder.

        Raises:
            InvalidInput: the session was added before, or was dumped with other columns.
        """
        name = str(packed["session"])
        self._check_packed(name, packed)
        place, start = len(self._starts) - 1, self._starts[-1]
        group, left = self._group_of.get(name, -1), name in self._left
        self._samples.append(packed["sample"])
        for _, _, index, leaf, counts, *numbers in packed["attempts"]:
            at = leaf if leaf < 0 else start + leaf
            kept = numbers if not left else [0.0, False, *numbers[2:]]
            self._attempts.append((place, group, index, at, counts and not left, *kept))
        for _, _, turn, parent, depth, attempt, scored, *facts in packed["turns"]:
            at = parent if parent < 0 else start + parent
            counts = scored and not left
            self._turns.append((place, group, turn, at, depth, attempt, counts, *facts))
        self._spans += [(start + turn, *facts) for turn, *facts in packed["spans"]]
        members = self._member_starts[-1]
        self._member_turn += [start + turn for turn in packed["member_turn"]]
        self._member_starts += [members + end for end in packed["member_starts"][1:]]
        self._starts.append(start + len(packed["turns"]))
        self._load_asked(packed)

    def _check_packed(self, name: str, packed: Mapping[str, Any]) -> None:
        if self._places.setdefault(name, len(self._places)) != len(self._starts) - 1:
            raise InvalidInput(f"session {name} is given twice")
        wanted = (self._digests is None, self._texts is None, self._signal_names)
        found = (packed["digests"] is None, packed["texts"] is None, tuple(packed["signal_names"]))
        if wanted != found:
            raise InvalidInput(f"session {name} was packed for another deriver: pack it again")

    def _load_asked(self, packed: Mapping[str, Any]) -> None:
        if self._digests is not None:
            self._digests += packed["digests"]
            for digest in packed["states"]:
                code = self._states.setdefault(bytes.fromhex(digest), len(self._states))
                self._state_codes.append(code)
        if self._texts is not None:
            self._texts += [tuple(texts) for texts in packed["texts"]]
        for at in range(len(self._signal_names)):
            self._signals[at] += packed["signals"][at]
            self._span_signals[at] += packed["span_signals"][at]

    def columns(self) -> dict[str, Any]:
        """Return the arguments of the table's constructor."""
        columns: dict[str, Any] = {
            "starts": np.array(self._starts, dtype=np.int64),
            "session_order": self._session_order(),
            "member_turn": np.array(self._member_turn, dtype=np.int64),
            "member_starts": np.array(self._member_starts, dtype=np.int64),
        }
        sizes = np.diff(columns["member_starts"])
        columns["member_attempt"] = np.repeat(np.arange(sizes.size), sizes)
        for names, rows in (
            (_TURN_COLUMNS, self._turns),
            (_ATTEMPT_COLUMNS, self._attempts),
            (_SPAN_COLUMNS, self._spans),
        ):
            columns |= _columns(names, rows)
        turns = np.arange(len(self._turns) + 1)
        columns["span_starts"] = np.searchsorted(columns["span_turn"], turns)
        columns["last"] = _last(columns["attempt_leaf"], len(self._turns))
        if self._digests is not None:
            columns["state_codes"] = np.array(self._state_codes, dtype=np.int64)
        if self._signal_names:
            columns |= self._signal_columns()
        for values in columns.values():
            values.flags.writeable = False
        columns["signal_names"] = self._signal_names
        columns["sessions"] = tuple(self._places)
        columns["groups"] = tuple(self._groups)
        columns["digests"] = None if self._digests is None else tuple(self._digests)
        columns["texts"] = self._text_columns()
        columns["_places"] = self._places
        return columns

    def _signal_columns(self) -> dict[str, Any]:
        given = self._signals
        return {
            "signal_values": np.array([[v or 0.0 for v in row] for row in given], np.float64),
            "signal_known": np.array([[v is not None for v in row] for row in given], np.bool_),
            "signal_spans": np.array(self._span_signals, np.float64),
        }

    def _session_order(self) -> Ints:
        names = list(self._places)
        order = sorted(range(len(names)), key=lambda s: (self._samples[s], names[s]))
        ranks = np.empty(len(names), dtype=np.int64)
        ranks[order] = np.arange(len(names))
        return ranks

    def _text_columns(self) -> Texts | None:
        if self._texts is None:
            return None
        actions, experts, states = zip(*self._texts, strict=True) if self._texts else ((), (), ())
        return Texts(actions, experts, states)


def _columns(names: tuple[str, ...], rows: list[tuple[float, ...]]) -> dict[str, Any]:
    # Indices stay exact: float64 represents all integers below 2**53.
    table: npt.NDArray[np.float64] = np.array(rows, dtype=np.float64).reshape(-1, len(names))
    return {name: table[:, i].astype(_DTYPES.get(name, np.int64)) for i, name in enumerate(names)}


def _last(leaves: Ints, n: int) -> Flags:
    last = np.zeros(n, dtype=np.bool_)
    last[leaves[leaves >= 0]] = True
    return last

"""GRPO-RoC: resample on correct, then GRPO."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._filters import Filter, Kept
from trajgym.rewards._grpo import GRPO
from trajgym.rewards._stats import grouped_attempts
from trajgym.rewards._values import Advantages
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.rewards._table import Doubles, Ints, Scope, TurnTable

__all__ = [
    "GRPORoC",
    "Penalty",
    "ResampleOnCorrect",
    "attempt_penalties",
    "inverse_probabilities",
    "resample",
    "text_penalty",
    "wanted_counts",
]

_NO_CALLS = 0.5
_FLOOR = 1e-3
"""Lower bound of the penalty, whose inverse is undefined at 0."""


class Penalty(NamedTuple):
    """The penalties of an attempt for errors and format."""

    error: float
    """Share of calls that failed; 0.5 without calls."""
    format: float
    """``min(1, (answers - 1) / turns)``; 1 without an answer or with unmatched tags."""

    @property
    def total(self) -> float:
        """The sum of both."""
        return self.error + self.format


_RESPONSE = re.compile(r"<tool_response>.*?</tool_response>", re.DOTALL)
_ANSWER = re.compile(r"<answer>.*?</answer>", re.DOTALL)
_ASSISTANT = re.compile(r"<\|im_start\|>assistant.*?<\|im_end\|>", re.DOTALL)


def text_penalty(text: str) -> Penalty:
    """Return the penalties as the official code computes them from a ChatML transcript.

    A call counts as failed if its response contains "error", ignoring case; so a traceback without
    the word passes and "mean squared error" fails. An answer counts only in a whole assistant turn
    with its header: if a response lacks its first header, a single-turn answer has penalty 1.
    """
    responses = _RESPONSE.findall(text)
    failed = sum("error" in response.lower() for response in responses)
    error = failed / len(responses) if responses else _NO_CALLS
    answers = len(_ANSWER.findall(text))
    whole = text.count("<answer>") == text.count("</answer>") == answers > 0
    turns = len(_ASSISTANT.findall(text))
    return Penalty(error, min(1.0, (answers - 1) / turns) if whole and turns else 1.0)


def attempt_penalties(table: TurnTable) -> Doubles:
    """Return float64 ``[A]``: error plus format penalty of each attempt, from its records.

    Failed calls are those with such a status; answers are counted as in ``table.answers``.
    """
    turns = table.member_turn
    ok, failed = (table.total(c[turns].astype(float)) for c in (table.calls_ok, table.calls_failed))
    calls = ok + failed
    error = np.where(calls > 0, failed / np.maximum(calls, 1.0), _NO_CALLS)
    answers = table.total(np.maximum(table.answers[turns], 0).astype(np.float64))
    broken = table.total((table.answers[turns] < 0).astype(np.float64)) > 0
    length = np.maximum(np.diff(table.member_starts), 1)
    whole = (answers > 0) & ~broken
    return error + np.where(whole, np.minimum((answers - 1.0) / length, 1.0), 1.0)


def inverse_probabilities(penalties: Sequence[float] | Doubles) -> Doubles:
    """Return probabilities inversely proportional to the penalties, clipped at 0.001 below."""
    inverse = 1.0 / np.maximum(np.asarray(penalties, dtype=np.float64), _FLOOR)
    found: Doubles = inverse / inverse.sum()
    return found


class Counts(NamedTuple):
    """How many attempts to keep."""

    negatives: int
    positives: int


def wanted_counts(
    negatives: int,
    positives: int,
    keep: int,
    *,
    variant: Literal["paper", "official"] = "paper",
    min_negatives: int = 2,
    min_positives: int = 2,
) -> Counts:
    """Return how many negatives and positives to keep of a group.

    ``paper``: of 2G attempts the paper keeps ``floor(negatives / 2)`` negatives and fills up with
    positives; for other sizes ``floor(negatives * keep / size)`` are kept. ``official``: both
    shares are rounded (half to even), with minima.

    Raises:
        InvalidInput: the official shares do not add up to ``keep``; the official code fails then.
    """
    size = negatives + positives
    if variant == "paper":
        few = negatives * keep // size
        few = max(few, keep - positives)
        return Counts(few, keep - few)
    no, yes = (round(n * keep / size) for n in (negatives, positives))
    if no < min_negatives and yes < min_positives:
        return Counts(negatives, positives)
    if no <= (least := min(min_negatives, negatives)):
        no, yes = least, keep - least
    if yes <= (least := min(min_positives, positives)):
        no, yes = keep - least, least
    no, yes = min(no, negatives), min(yes, positives)
    if no + yes != keep:
        raise InvalidInput(
            f"grpo_roc: {negatives} negatives and {positives} positives round to {no} + {yes}, "
            f"not {keep}: choose another keep",
        )
    return Counts(no, yes)


def resample(
    positive: Sequence[bool],
    penalties: Sequence[float] | Doubles,
    counts: Counts,
    rng: np.random.Generator | None = None,
) -> list[int]:
    """Return which attempts of a group to keep, sorted.

    Args:
        positive: whether each attempt is a positive.
        penalties: penalty of each attempt.
        counts: how many to keep of each kind.
        rng: draws negatives uniformly and positives with inverse probability, without
            replacement; if None, the first negatives and the positives of lowest penalty are kept.
    """
    weights = np.asarray(penalties, dtype=np.float64)
    yes = np.flatnonzero(np.asarray(positive, dtype=np.bool_))
    no = np.flatnonzero(~np.asarray(positive, dtype=np.bool_))
    if rng is None:
        best = yes[np.argsort(weights[yes], kind="stable")]
        chosen = [*no[: counts.negatives], *best[: counts.positives]]
    else:
        chosen = []
        if counts.negatives:
            chosen += [*rng.choice(no, counts.negatives, replace=False)]
        if counts.positives:
            p = inverse_probabilities(weights[yes])
            chosen += [*rng.choice(yes, counts.positives, replace=False, p=p)]
    return sorted(int(i) for i in chosen)


class ResampleOnCorrect(Filter):
    """rStar2-Agent's resample-on-correct (arXiv 2508.20722): keep half, preferring clean passes.

    Positives are attempts with a score above 0. A group of exactly ``keep`` attempts is kept, and a
    smaller one is dropped. Attempts are ordered by sample number and id.

    Attributes:
        variant: how many are kept of each kind, see `wanted_counts`. The official code also
            reads errors and answers from the text (`text_penalty`); here both variants use the
            records. A group whose official shares do not add up is dropped.
        draw: ``sampled`` draws as the paper does, and needs a ``seed``; ``deterministic`` takes
            the lowest penalties and the first negatives, as the released code does.
        seed: seed of the draw; each group has its own stream.
        keep: how many to keep; None for half of the group.
        min_negatives: minimum number of negatives (official).
        min_positives: minimum number of positives (official).
    """

    name = "resample_on_correct"

    variant: Literal["paper", "official"] = "paper"
    draw: Literal["deterministic", "sampled"] = "deterministic"
    seed: int | None = None
    keep: Annotated[int, Field(gt=0)] | None = None
    min_negatives: Annotated[int, Field(ge=0)] = 2
    min_positives: Annotated[int, Field(ge=0)] = 2

    @model_validator(mode="after")
    def _seeded(self) -> Self:
        if (self.draw == "sampled") != (self.seed is not None):
            raise ValueError("draw='sampled' needs a seed; draw='deterministic' takes none")
        return self

    def select(self, table: TurnTable) -> Kept:
        """Return the chosen attempts of each group."""
        counted, groups = grouped_attempts(table)
        sessions = table.session_order[table.attempt_session[counted]]
        order = np.lexsort((table.attempt_index[counted], sessions, groups))
        counted, groups = counted[order], groups[order]
        penalties = attempt_penalties(table)
        attempts = np.zeros(table.attempt_scored.size, dtype=np.bool_)
        reasons: dict[int, str] = {}
        for members in np.split(counted, np.flatnonzero(np.diff(groups)) + 1):
            if not members.size:
                continue
            chosen, reason = self._choose(table, members, penalties)
            attempts[chosen] = True
            if chosen.size < members.size:
                reasons |= dict.fromkeys(members[~attempts[members]].tolist(), reason)
        return Kept(table, attempts, reasons)

    def _choose(self, table: TurnTable, members: Ints, penalties: Doubles) -> tuple[Ints, str]:
        keep = max(members.size // 2, 1) if self.keep is None else self.keep
        if members.size <= keep:
            whole = members if members.size == keep else members[:0]
            return whole, f"its group has fewer than {keep} attempts"
        positive = table.attempt_score[members] > 0
        yes = int(positive.sum())
        try:
            counts = wanted_counts(
                members.size - yes,
                yes,
                keep,
                variant=self.variant,
                min_negatives=self.min_negatives,
                min_positives=self.min_positives,
            )
        except InvalidInput as error:
            return members[:0], str(error)
        name = table.groups[table.attempt_group[members[0]]]
        chosen = resample(positive.tolist(), penalties[members], counts, self._rng(name))
        return members[chosen], "not chosen by resample-on-correct"

    def _rng(self, group: str) -> np.random.Generator | None:
        if self.seed is None:
            return None
        # One stream per group, so that the draw does not depend on other groups in the table.
        entropy = int.from_bytes(sha256(group.encode()).digest()[:8], "big")
        return np.random.default_rng([self.seed, entropy])


class GRPORoC(Deriver):
    """GRPO over the attempts that resample-on-correct keeps; 0 on the others.

    Attributes:
        resample: chooses the attempts to keep.
        grpo: computes the advantages among them.
    """

    name = "grpo_roc"
    depends_on: ClassVar[Scope] = "group"
    group_relative = True

    resample: ResampleOnCorrect = Field(default_factory=ResampleOnCorrect)
    grpo: GRPO = Field(default_factory=GRPO)

    def derive(self, table: TurnTable) -> Advantages:
        """Return the advantages of the kept attempts."""
        kept = self.resample.select(table)
        return Advantages(table, self.grpo.derive(kept.table).values, self.stamp)

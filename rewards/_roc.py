"""GRPO-RoC: resample on correct, then GRPO."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Self

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

    from trajgym.rewards._table import Doubles, Ints, TurnTable

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
"""Of the penalty in the paper's inverse, which is undefined at 0."""


class Penalty(NamedTuple):
    """How badly an attempt came to its answer."""

    error: float
    """Failed calls over calls, 0.5 without calls."""
    format: float
    """``min(1, (answers - 1) / turns)``, 1 without an answer or with broken tags."""

    @property
    def total(self) -> float:
        """The sum of both."""
        return self.error + self.format


_RESPONSE = re.compile(r"<tool_response>.*?</tool_response>", re.DOTALL)
_ANSWER = re.compile(r"<answer>.*?</answer>", re.DOTALL)
_ASSISTANT = re.compile(r"<\|im_start\|>assistant.*?<\|im_end\|>", re.DOTALL)


def text_penalty(text: str) -> Penalty:
    """Return the penalties as the official code reads them off a ChatML transcript.

    A call counts as failed if its response contains "error" in any case, so that a traceback
    without the word passes and "mean squared error" fails. An answer needs a whole assistant turn,
    header included: of a response without its first header, a single-turn answer scores 1.
    """
    responses = _RESPONSE.findall(text)
    failed = sum("error" in response.lower() for response in responses)
    error = failed / len(responses) if responses else _NO_CALLS
    answers = len(_ANSWER.findall(text))
    whole = text.count("<answer>") == text.count("</answer>") == answers > 0
    turns = len(_ASSISTANT.findall(text))
    return Penalty(error, min(1.0, (answers - 1) / turns) if whole and turns else 1.0)


def attempt_penalties(table: TurnTable) -> Doubles:
    """Return float64 ``[A]``: error plus format penalty of each attempt, from what was recorded.

    A call failed if its status says so; answers are counted as ``table.answers`` does.
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
    """Return probabilities inversely proportional to the penalties, which 0.001 bounds below."""
    inverse = 1.0 / np.maximum(np.asarray(penalties, dtype=np.float64), _FLOOR)
    found: Doubles = inverse / inverse.sum()
    return found


class Counts(NamedTuple):
    """How many to keep."""

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

    ``paper``: of 2G the paper keeps ``floor(negatives / 2)`` and fills up with positives; for
    other sizes here ``floor(negatives * keep / size)``. ``official``: both shares rounded (half
    to even), with minima.

    Raises:
        InvalidInput: the official shares do not add up to ``keep``; that code stops there.
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
        positive: whether each earned something.
        penalties: one for each.
        counts: how many to keep of each kind.
        rng: draws negatives uniformly and positives with inverse probability, without
            replacement; without it, the first negatives and the positives of lowest penalty.
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
    """rStar2-Agent's resample-on-correct (arXiv 2508.20722): keep half, the clean passes first.

    Positives are attempts with a score above 0. A group that is no larger than ``keep`` is kept
    whole if it has that size, and dropped if it is smaller. Attempts count in the order of their
    sample numbers and ids.

    Attributes:
        variant: how many are kept of each kind, see `wanted_counts`. The official code also
            reads errors and answers off the text (`text_penalty`); here both variants use what
            was recorded. A group whose official shares do not add up is dropped.
        draw: ``sampled`` draws as the paper does, and needs a ``seed``; ``deterministic`` takes
            the lowest penalties and the first negatives, as the released code does.
        seed: of the draw; each group has a stream of its own.
        keep: how many to keep; None for half of the group.
        min_negatives: least number of negatives (official).
        min_positives: least number of positives (official).
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
            raise ValueError("draw='sampled' needs a seed, and nothing else takes one")
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
        return members[chosen], "resampled on correct"

    def _rng(self, group: str) -> np.random.Generator | None:
        if self.seed is None:
            return None
        # A stream per group: other groups in the table change nothing.
        entropy = int.from_bytes(sha256(group.encode()).digest()[:8], "big")
        return np.random.default_rng([self.seed, entropy])


class GRPORoC(Deriver):
    """GRPO over the attempts that resample-on-correct keeps; 0 on the others.

    Attributes:
        resample: what to keep.
        grpo: the advantage among those.
    """

    name = "grpo_roc"
    group_relative = True

    resample: ResampleOnCorrect = Field(default_factory=ResampleOnCorrect)
    grpo: GRPO = Field(default_factory=GRPO)

    def derive(self, table: TurnTable) -> Advantages:
        """Return the advantages of the attempts that are kept."""
        kept = self.resample.select(table)
        return Advantages(table, self.grpo.derive(kept.table).values, self.stamp)

"""Derived advantages of every family, and the gradient that a loss over them must have.

A trainer's gradient by the weights is the gradient by the log-probs of trained tokens, times what
the model does, which is the same for all. So a loss is compared token by token, with no model::

    dL / d log p_t = share_t * slope(p_t / behaviour_t, A_t)

where the share depends on the aggregation, and the slope on the objective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tests.adapters.test_group_rows import sealed
from trajgym.adapters import RowBuilder
from trajgym.rewards import Advantages, DeriverSpec
from trajgym.rollout import SealedGroup
from trajgym.trajectory import Member, TrainingRow

CLIP = 0.2
FAMILIES: dict[str, DeriverSpec] = {
    "attempts": "grpo",
    "turns": "gigpo",
    "returns": {"name": "stepwise", "rewards": ["outcome", {"name": "tool_calls", "weight": 0.5}]},
    "votes": {"name": "next_state_votes"},
    "spans": "toolpo",
    "hints": {"name": "directive_hints", "settings": {"over": "span"}},
    "trees": "tree_grpo",
}


def group() -> SealedGroup:
    """Five members: one failed, one with two rows because its context was rewritten."""
    made = sealed()
    turn = made.sessions[1].turns[2]
    assert turn.tokens is not None
    turn.tokens = replace(turn.tokens, prompt_kept=0)
    turn.edge, turn.kept = "rewrite", 0
    turn.context = [{"role": "user", "content": "go on"}]
    made.group.members.append(Member("gone", 4, "failed:env"))
    made.group.planned = 5
    return made


def derived(family: str) -> tuple[SealedGroup, RowBuilder, list[TrainingRow]]:
    """Return the group, the builder of a family, and all of its rows."""
    given = group()
    build = RowBuilder(FAMILIES[family], "a loss", kind=Advantages)
    return given, build, build(given).rows


def log_ratios(row: TrainingRow) -> np.ndarray:
    """float64 ``[T]``: how much likelier each token became; some are clipped."""
    return np.where(row.loss_mask, 0.4 * np.sin(1.7 * np.arange(len(row)) + len(row)), 0.0)


def clipped(ratio: np.ndarray, advantage: np.ndarray) -> np.ndarray:
    """Slope of PPO's objective by the log-prob."""
    bounded = np.clip(ratio, 1 - CLIP, 1 + CLIP)
    return np.where(ratio * advantage <= bounded * advantage, -ratio * advantage, 0.0)


def shares(rows: list[TrainingRow], mean: str, length: int = 1) -> list[float]:
    """Return each row's share per token under a mean.

    Args:
        rows: of one update; sessions can have several.
        mean: ``tokens``, ``sum``, ``sessions`` (of sums of tokens), ``sessions/length``, or
            ``sessions of means``.
        length: the constant of ``sessions/length``.
    """
    of_session: Counter[str] = Counter()
    for row in rows:
        of_session[row.session] += int(row.loss_mask.sum())
    total, sessions = of_session.total(), len(of_session)
    return [
        {
            "tokens": 1 / total,
            "sum": 1.0,
            "sessions": 1 / sessions,
            "sessions/length": 1 / sessions / length,
            "sessions of means": 1 / sessions / of_session[row.session],
        }[mean]
        for row in rows
    ]


def reference(
    rows: list[TrainingRow],
    mean: str,
    slope: Callable[..., Any] = clipped,
    length: int = 1,
) -> list[np.ndarray]:
    """Return each row's gradient by its log-probs, float64 ``[T]``, 0 where nothing is trained."""
    found = []
    for row, share in zip(rows, shares(rows, mean, length), strict=True):
        assert row.advantage is not None
        advantage = row.advantage.astype(np.float64)
        gradient = share * slope(np.exp(log_ratios(row)), advantage)
        found.append(np.where(row.loss_mask, gradient, 0.0))
    return found

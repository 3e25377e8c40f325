"""Where tree rollouts fork: scores of turns and tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection

    from trajgym.trajectory import SessionTree

__all__ = ["ForkPoint", "branch_probability", "eptree_leaves", "fork_points"]


class ForkPoint(NamedTuple):
    """A token before which another continuation can be sampled."""

    turn: int
    token: int
    """Index into the turn's response ids; the new branch keeps the ids before it."""
    surprisal: float
    """``-log p`` (nats) of the sampled token."""


def fork_points(
    tree: SessionTree,
    count: int,
    *,
    skip_first: bool = True,
    closed_after: Collection[tuple[int, int]] = (),
) -> list[ForkPoint]:
    """Return the sampled tokens of a session with the largest surprisal, in descending order.

    EPTree (TreeRL) calls ``-log p`` of the sampled token its entropy, and forks where it is
    largest. Ties go to the earlier token. Text turns have no log-probs and no fork points.

    Args:
        tree: the session.
        count: N, the largest number of tokens to return.
        skip_first: exclude each turn's first sampled token, where a branch has just begun.
        closed_after: (turn, token) pairs: that turn's tokens from there on are excluded. The
            method closes a branch once it has begun to write its answer.

    Raises:
        InvalidInput: ``count`` is negative.
    """
    if count < 0:
        raise InvalidInput(f"fork points: count is {count}; it must be at least 0")
    closed = dict(closed_after)
    found: list[ForkPoint] = []
    for turn in tree.turns:
        if turn.tokens is None:
            continue
        open_ = turn.tokens.sampled_mask
        if skip_first and open_.any():
            open_[int(np.argmax(open_))] = False
        open_[closed.get(turn.index, open_.size) :] = False
        at = np.flatnonzero(open_)
        surprisal = -turn.tokens.logprobs[at].astype(np.float64)
        best = np.argsort(-surprisal, kind="stable")[:count]
        found += [ForkPoint(turn.index, int(at[i]), float(surprisal[i])) for i in best]
    found.sort(key=lambda point: (-point.surprisal, point.turn, point.token))
    return found[:count]


def eptree_leaves(chains: int, nodes: int, rounds: int, branches: int) -> int:
    """Return the leaves of EPTree: ``M * (T * N * L + 1)``.

    Args:
        chains: M, initial chains.
        nodes: N, tokens forked per tree and round.
        rounds: L.
        branches: T, continuations of each fork.
    """
    return chains * (branches * nodes * rounds + 1)


def branch_probability(
    initial: float, current: float, *, base: float = 0.5, weight: float = 0.2
) -> float:
    """Return the probability that ARPO (arXiv 2507.19849) branches after a tool call.

    It is ``clip(base + weight * (current - initial), 0, 1)``, with the entropies of the session's
    first tokens and of the first tokens after the call. Defaults are those of the authors' script.

    Raises:
        InvalidInput: an entropy is not finite.
    """
    if not (math.isfinite(initial) and math.isfinite(current)):
        raise InvalidInput(f"branch probability: entropies are {initial} and {current}")
    return min(max(base + weight * (current - initial), 0.0), 1.0)

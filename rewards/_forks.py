"""Where to fork: scores of turns and tokens that tree rollouts branch at."""

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
    """A token at which another continuation would be sampled."""

    turn: int
    token: int
    """Index into the turn's response ids: the new branch keeps those before it."""
    surprisal: float
    """``-log p`` (nats) of the token that was sampled there."""


def fork_points(
    tree: SessionTree,
    count: int,
    *,
    skip_first: bool = True,
    closed_after: Collection[tuple[int, int]] = (),
) -> list[ForkPoint]:
    """Return the most surprising sampled tokens of a session, the most surprising first.

    EPTree (TreeRL) calls ``-log p`` of the sampled token its entropy, and forks where it is
    largest. Ties go to the earlier token. Text turns have no log-probs and no fork points.

    Args:
        tree: the session.
        count: N, how many; fewer come back if there are no more.
        skip_first: leave out each turn's first sampled token, where a branch just began.
        closed_after: (turn, token) pairs: that turn's tokens from there on are left out. The
            method closes a branch after it began to write its answer.

    Raises:
        InvalidInput: a negative count.
    """
    if count < 0:
        raise InvalidInput(f"fork points: count is {count}; it is at least 0")
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

    ``clip(base + weight * (current - initial), 0, 1)``, with the entropies of the first tokens of
    the session and after the tool call. The defaults are those of the authors' script.

    Raises:
        InvalidInput: an entropy that is not finite.
    """
    if not (math.isfinite(initial) and math.isfinite(current)):
        raise InvalidInput(f"branch probability: entropies are {initial} and {current}")
    return min(max(base + weight * (current - initial), 0.0), 1.0)

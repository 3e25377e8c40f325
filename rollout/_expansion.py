"""Expansions of tree rollouts: where to fork a session that has ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trajgym.rewards.trees import branch_probability, eptree_leaves, fork_points, tree_budget
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from trajgym.trajectory import SessionTree, Turn

__all__ = ["EntropyExpansion", "Expansion", "SurprisalExpansion", "TreeExpansion"]


class Expansion(ABC):
    """Decides after which turns a session is forked, once its first attempt has been scored.

    The runner opens one rival attempt for every turn that a round names, runs all of them to their
    ends, and asks for the next round. Implement it as a frozen dataclass: its ``repr`` is recorded
    with every session, as the label ``expansion``.
    """

    rounds: int = 1
    """How often :meth:`plan` is called."""

    @abstractmethod
    def plan(self, tree: SessionTree, number: int, chance: random.Random) -> list[int | None]:
        """Return where the rivals of a round begin, one entry per rival.

        Args:
            tree: the session so far; all its attempts have ended.
            number: number of the round, from 0.
            chance: the only source of randomness; the same in every run with the same seed.

        Returns:
            Indices of turns: the rival keeps that turn and the turns before it, and continues from
            there. None opens a rival before the first turn. A turn may be listed several times.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeExpansion(Expansion):
    """Tree-GRPO (arXiv 2509.21240): L times, N nodes of each tree are continued to the end.

    A tree is a session, so M trees are M samples of a task, and a task gives ``M * (L * N + 1)``
    leaves. Only nodes after which an attempt continued can be chosen, so leaves can't.

    Args:
        nodes: N, rivals per tree and round.
        rounds: L.
        variant: ``paper``: N different nodes; if a tree has fewer, all are used before one is
            used again, and the root (a new attempt) only if there is no other node.
            ``official`` (AMAP-ML/Tree-GRPO): drawn with replacement, the root among them.

    Raises:
        InvalidInput: a negative number.
    """

    nodes: int = 2
    rounds: int = 1
    variant: Literal["paper", "official"] = "paper"

    def __post_init__(self) -> None:
        self.leaves(1)

    def leaves(self, trees: int) -> int:
        """Return how many leaves a task has with ``trees`` samples, if no rival fails."""
        return tree_budget(trees, self.nodes, self.rounds).leaves

    def plan(self, tree: SessionTree, number: int, chance: random.Random) -> list[int | None]:
        """See :meth:`Expansion.plan`."""
        del number
        inner: list[int | None] = [turn.index for turn in _turns(tree, leaves=False)]
        if self.variant == "official":
            return chance.choices([None, *inner], k=self.nodes)
        return _without_replacement(inner or [None], self.nodes, chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurprisalExpansion(Expansion):
    """EPTree (TreeRL, arXiv 2506.11902) at turns: resample what the policy was least sure of.

    In each round, the N turns whose most surprising sampled token has the largest ``-log p`` are
    sampled again T times, from before that turn. Turns without a rival are preferred. A task with
    M samples has ``M * (T * N * L + 1)`` leaves. EPTree itself continues within a response, from
    that token, whereas a session is forked between turns. If a tree has fewer than N turns, fewer
    are resampled.

    Args:
        nodes: N, turns resampled per tree and round.
        rounds: L.
        branches: T, rivals of each.

    Raises:
        InvalidInput: a negative number; from :meth:`plan`, a session of text turns.
    """

    nodes: int = 2
    rounds: int = 1
    branches: int = 2

    def __post_init__(self) -> None:
        if min(self.nodes, self.rounds, self.branches) < 0:
            raise InvalidInput(f"{self}: no number may be negative")

    def leaves(self, trees: int) -> int:
        """Return how many leaves a task has with ``trees`` samples, if no rival fails."""
        return eptree_leaves(trees, self.nodes, self.rounds, self.branches)

    def plan(self, tree: SessionTree, number: int, chance: random.Random) -> list[int | None]:
        """See :meth:`Expansion.plan`."""
        del number, chance
        turns = {turn.index: turn for turn in _exact(tree, type(self).__name__)}
        every = sum(turn.tokens.response_ids.size for turn in tree.turns if turn.tokens)
        points = fork_points(tree, every)
        ranked = [turns[i] for i in dict.fromkeys(p.turn for p in points) if i in turns]
        own = [turn for turn in tree.turns if not turn.simulated]
        siblings = [sum(other.parent == turn.parent for other in own) for turn in ranked]
        fresh = [turn for turn, n in zip(ranked, siblings, strict=True) if n == 1]
        again = [turn for turn, n in zip(ranked, siblings, strict=True) if n > 1]
        chosen = [*fresh, *again][: self.nodes]
        return [turn.parent for turn in chosen for _ in range(self.branches)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyExpansion(Expansion):
    """ARPO (arXiv 2507.19849) at turns: resample after tool results that made the policy unsure.

    For each turn that follows one with tool calls, in order, the entropy of the first tokens is
    compared with that of the session's first turn, and the turn is resampled with probability
    :func:`trajgym.rewards.trees.branch_probability` until the budget is used up. Engines report the
    log-prob of the sampled token only, so the mean surprisal (nats) is used as the entropy; ARPO
    uses the ten most likely tokens, and branches while the attempt is running.

    Args:
        branches: largest number of rivals of a session.
        tokens: number of first sampled tokens of a turn that are used.
        base: probability if the entropies are equal.
        weight: weight of the difference of the entropies.

    Raises:
        InvalidInput: a negative number; from :meth:`plan`, a session of text turns.
    """

    branches: int = 1
    tokens: int = 20
    base: float = 0.5
    weight: float = 0.2

    def __post_init__(self) -> None:
        if self.branches < 0 or self.tokens < 1:
            raise InvalidInput(f"{self}: branches must be at least 0 and tokens at least 1")

    def plan(self, tree: SessionTree, number: int, chance: random.Random) -> list[int | None]:
        """See :meth:`Expansion.plan`."""
        del number
        turns = _exact(tree, type(self).__name__)
        initial = _surprisal(turns[0], self.tokens) if turns else 0.0
        found: list[int | None] = []
        for turn in turns:
            if turn.parent is None or not tree.turns[turn.parent].calls:
                continue
            now = _surprisal(turn, self.tokens)
            likely = branch_probability(initial, now, base=self.base, weight=self.weight)
            if chance.random() < likely:
                found.append(turn.parent)
        return found[: self.branches]


def _turns(tree: SessionTree, *, leaves: bool = True) -> list[Turn]:
    """Return the turns of scored attempts in an order that does not depend on timing."""
    found: dict[int, Turn] = {}
    for attempt in tree.attempts:
        if attempt.status.scored:
            path = [turn for turn in tree.trajectory(attempt) if turn.agent == "main"]
            found |= {turn.index: turn for turn in (path if leaves else path[:-1])}
    return sorted(found.values(), key=lambda turn: (turn.attempt, turn.index))


def _exact(tree: SessionTree, name: str) -> list[Turn]:
    turns = [turn for turn in _turns(tree) if not turn.empty]
    for turn in turns:
        if turn.tokens is None:
            raise InvalidInput(
                f"{name}: turn {turn.index} is a text turn (policy {turn.policy!r}), which has no "
                "log-probs to choose by: use TreeExpansion, or a policy with token ids",
            )
    return turns


def _surprisal(turn: Turn, most: int) -> float:
    assert turn.tokens is not None
    sampled = turn.tokens.logprobs[turn.tokens.sampled_mask][:most]
    return -float(sampled.mean(dtype="float64")) if sampled.size else 0.0


def _without_replacement(
    nodes: Sequence[int | None], count: int, chance: random.Random
) -> list[int | None]:
    found: list[int | None] = []
    while len(found) < count:
        found += chance.sample(nodes, min(len(nodes), count - len(found)))
    return found

"""What a run costs, counted while it is collected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.rollout._progress import Progress
    from trajgym.rollout._runner import Runner
    from trajgym.rollout.evaluation._prices import Prices
    from trajgym.rollout.fleet import Fleet
    from trajgym.trajectory import Run, SessionTree, Usage

__all__ = ["CostMeter", "Spent"]


@dataclass(slots=True)
class Spent:
    """Tokens and costs of some turns.

    Args:
        prompt_tokens: of all turns.
        completion_tokens: of all turns.
        cost: of the turns whose price is known.
        unpriced: turns whose price or usage is unknown.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0

    def add(self, policy: str, usage: Usage | None, prices: Prices | None) -> None:
        """Count a turn."""
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens
        cost = None if prices is None else prices.cost(policy, usage)
        self.unpriced += cost is None
        self.cost += cost or 0.0

    def add_session(self, tree: SessionTree, prices: Prices | None) -> None:
        """Count the turns of a session."""
        for turn in tree.turns:
            self.add(turn.policy, turn.usage, prices)


class CostMeter:
    """Counts what a run costs, and stops the run when a limit is reached.

    ::

        meter = CostMeter(prices, limit=10.0)
        await collect(spec, tasks, policy, out, on_start=meter.watch, on_progress=meter.note)

    When the limit is reached no further session begins. Sessions under way are finished, so the run
    can cost more than the limit, by what these sessions still need. A turn that has no known price
    or usage stops the run too, since its cost can't be bounded. Collecting again with a higher
    limit resumes the run.

    Args:
        prices: price table; without one only tokens are counted.
        limit: of the run's costs, in the currency of the prices.

    Raises:
        InvalidInput: a limit without prices, or one that is not positive.
    """

    def __init__(self, prices: Prices | None = None, *, limit: float | None = None) -> None:
        if limit is not None and prices is None:
            raise InvalidInput("a cost limit needs a price table (--prices FILE)")
        if limit is not None and not limit > 0:
            raise InvalidInput(f"the cost limit is {limit}; it must be more than 0")
        self.prices = prices
        self.limit = limit
        self.spent = Spent()
        self.stopped = ""
        """Why the run was stopped; empty while it was not."""
        self._runner: Runner | Fleet | None = None

    def count(self, run: Run) -> None:
        """Count what an earlier call on a run has spent, reading one session at a time."""
        for tree in run.sessions():
            self.spent.add_session(tree, self.prices)
        self._check()

    def watch(self, runner: Runner | Fleet) -> None:
        """Take the runner that is stopped at the limit."""
        self._runner = runner
        self._check()

    def note(self, event: Progress) -> None:
        """Count a turn that was recorded; other events are ignored."""
        if event.turn is not None:
            self.spent.add(event.turn.policy, event.turn.usage, self.prices)
            self._check()

    def _check(self) -> None:
        if self.limit is None or self.prices is None:
            return
        if self.spent.cost >= self.limit and not self.stopped:
            self.stopped = (
                f"the cost limit of {self.limit:g} {self.prices.currency} is reached "
                f"({self.spent.cost:.4g} spent)"
            )
        elif self.spent.unpriced and not self.stopped:
            self.stopped = (
                f"{self.spent.unpriced} turns have no known price or usage, so the cost limit "
                "can't be kept"
            )
        if self.stopped and self._runner is not None:
            self._runner.stop()

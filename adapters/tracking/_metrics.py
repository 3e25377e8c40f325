"""The metrics of a run, from the events of its runner."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from trajgym.rollout.evaluation import Spent

if TYPE_CHECKING:
    from trajgym.rollout import Progress
    from trajgym.rollout.evaluation import Prices

__all__ = ["RunMetrics"]


class RunMetrics:
    """Turns a runner's events into metrics, one set for each session that ends.

    ``session/...`` are of that session: ``score`` (if it was scored), ``turns``, ``prompt_tokens``,
    ``completion_tokens``, ``cost``. ``run/...`` are of all sessions so far: ``sessions``,
    ``solved`` (share of the scored ones with a score of at least 1), ``score`` (mean), ``failed``,
    ``truncated``, ``prompt_tokens``, ``completion_tokens``, ``cost``. Costs are
    omitted without prices.
    """

    def __init__(self, prices: Prices | None = None) -> None:
        self._prices = prices
        self._open: defaultdict[str, Spent] = defaultdict(Spent)
        self._turns: Counter[str] = Counter()
        self._all = Spent()
        self._kinds: Counter[str] = Counter()
        self._scores: list[float] = []
        self._solved = 0

    @property
    def step(self) -> int:
        """How many sessions have ended."""
        return self._kinds.total()

    def note(self, event: Progress) -> dict[str, float] | None:
        """Count an event; return the metrics if a session ended, else None."""
        if event.turn is not None:
            self._turns[event.session] += 1
            for spent in (self._open[event.session], self._all):
                spent.add(event.turn.policy, event.turn.usage, self._prices)
        return self._ended(event) if event.kind == "ended" else None

    def _ended(self, event: Progress) -> dict[str, float]:
        self._kinds[event.status.partition(":")[0]] += 1
        own = {"turns": float(self._turns.pop(event.session, 0))}
        own |= self._spent(self._open.pop(event.session, Spent()))
        if event.score is not None:
            own["score"] = event.score
            self._scores.append(event.score)
            self._solved += event.score >= 1.0
        whole = {"sessions": float(self.step), **self._spent(self._all)}
        whole |= {kind: float(self._kinds[kind]) for kind in ("failed", "truncated")}
        if self._scores:
            whole["solved"] = self._solved / len(self._scores)
            whole["score"] = sum(self._scores) / len(self._scores)
        named = [("session", own), ("run", whole)]
        return {f"{part}/{name}": value for part, found in named for name, value in found.items()}

    def _spent(self, spent: Spent) -> dict[str, float]:
        found = {
            "prompt_tokens": float(spent.prompt_tokens),
            "completion_tokens": float(spent.completion_tokens),
        }
        return found | ({} if self._prices is None else {"cost": spent.cost})

"""What one attempt has searched, seen and answered; small enough to be its own snapshot."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from trajgym.envs.search._score import normalize_answer, score_answer
from trajgym.trajectory import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs.search._engine import Passage
    from trajgym.envs.search._tasks import SearchRecord

__all__ = ["SearchState"]


@dataclass(slots=True)
class SearchState:
    """The state of an attempt.

    Args:
        searches: how many were made.
        opened: how many documents were opened.
        seen: ids of the passages that the agent was shown, in order of appearance.
        found: which gold passages are among them.
        answer: what it answered, None so far.
    """

    searches: int = 0
    opened: int = 0
    seen: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    answer: str | None = None

    def show(self, passages: Sequence[Passage], record: SearchRecord) -> None:
        """Note that passages were shown."""
        for passage in passages:
            if passage.id not in self.seen:
                self.seen.append(passage.id)
            gold = _gold_name(passage, record)
            if gold is not None and gold not in self.found:
                self.found.append(gold)

    def recall(self, record: SearchRecord) -> float | None:
        """Return the share of the gold passages that were shown, None where none is known."""
        wanted = len(record.gold or record.gold_titles)
        return len(self.found) / wanted if wanted else None

    def signals(self, record: SearchRecord) -> dict[str, Any]:
        """Return the facts of this moment for derivers; all of them count from the start."""
        return {
            "searches": self.searches,
            "opened": self.opened,
            "seen": list(self.seen),
            "support_found": list(self.found),
            "support_recall": self.recall(record),
        }

    def outcome(self, record: SearchRecord, metric: str) -> Outcome:
        """Score the answer; no answer scores 0."""
        given = bool(self.answer and self.answer.strip())
        score = score_answer(self.answer or "", record.answers if given else [])
        details = {
            "answer": self.answer,
            "metric": metric,
            **score._asdict(),
            "support_recall": self.recall(record),
            "searches": self.searches,
        }
        value = float(getattr(score, metric, 0.0))
        return Outcome(score=value, passed=value >= 1.0, details=details)

    def to_json(self) -> str:
        """Return the state as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SearchState:
        """Read what :meth:`to_json` gave."""
        return cls(**json.loads(text))


def _gold_name(passage: Passage, record: SearchRecord) -> str | None:
    """Return the name of the gold passage that this one is: its id, or else its title."""
    if record.gold:
        if passage.id in record.gold:
            return passage.id
        if len(record.gold) != len(record.gold_titles):
            return None
    title = normalize_answer(passage.title)
    for index, wanted in enumerate(record.gold_titles):
        if title and title == normalize_answer(wanted):
            return record.gold[index] if record.gold else wanted
    return None

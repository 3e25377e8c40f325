"""The state of one attempt: searches, shown passages, and the answer."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from trajgym.envs.search._score import (
    holds_answer,
    normalize_answer,
    score_answer,
    score_citations,
)
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
        gold_of: the gold passage that a shown id stands for.
        holding: ids of the shown passages that hold an accepted answer.
        answer: the answer; None before it is given.
        citations: ids of the passages that the answer cites.
    """

    searches: int = 0
    opened: int = 0
    seen: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    gold_of: dict[str, str] = field(default_factory=dict)
    holding: list[str] = field(default_factory=list)
    answer: str | None = None
    citations: list[str] = field(default_factory=list)

    def show(self, passages: Sequence[Passage], record: SearchRecord) -> None:
        """Record that passages were shown."""
        for passage in passages:
            if passage.id not in self.seen:
                self.seen.append(passage.id)
            gold = _gold_name(passage, record)
            if gold is not None:
                self.gold_of[passage.id] = gold
                if gold not in self.found:
                    self.found.append(gold)
            text = f"{passage.title} {passage.text}"
            if passage.id not in self.holding and holds_answer(text, record.answers):
                self.holding.append(passage.id)

    def recall(self, record: SearchRecord) -> float | None:
        """Return the share of the gold passages that were shown, None where none is known."""
        wanted = len(record.gold or record.gold_titles)
        return len(self.found) / wanted if wanted else None

    def signals(self, record: SearchRecord) -> dict[str, Any]:
        """Return the signals of this turn for derivers; all are totals since the start."""
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
            **self._cited(record),
        }
        value = float(getattr(score, metric, 0.0))
        return Outcome(score=value, passed=value >= 1.0, details=details)

    def _cited(self, record: SearchRecord) -> dict[str, Any]:
        """Return the citations and their scores; empty if the answer has none."""
        if not self.citations:
            return {}
        score = score_citations(
            self.citations,
            record.answers,
            seen=self.seen,
            holding=self.holding,
            gold_of=self.gold_of,
            support=len(record.gold or record.gold_titles),
        )
        return {"cited": list(self.citations), **score._asdict()}

    def to_json(self) -> str:
        """Return the state as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SearchState:
        """Restore a state from :meth:`to_json`."""
        return cls(**json.loads(text))


def _gold_name(passage: Passage, record: SearchRecord) -> str | None:
    """Return the id or title by which this passage is known as gold."""
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

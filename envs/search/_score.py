"""The usual comparisons of answers with gold answers."""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = [
    "AnswerScore",
    "CitationScore",
    "comparable",
    "holds_answer",
    "normalize_answer",
    "score_answer",
    "score_citations",
]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset({"yes", "no", "noanswer"})


class AnswerScore(NamedTuple):
    """Scores of an answer against its best gold answer, 0.0 to 1.0 each."""

    em: float
    """1.0 if the normalised texts are equal and not empty."""
    f1: float
    """Of the words; 0.0 between a yes or no and anything else."""
    cover: float
    """1.0 if the words of a gold are in the answer, next to each other."""


def normalize_answer(text: str) -> str:
    """Return text in lower case without punctuation, articles and surplus blanks (as SQuAD)."""
    plain = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def comparable(text: str) -> str:
    """Return the normalised text; a text of articles only, such as the choice "A", keeps them.

    Empty for a text without any letter or digit, which equals nothing.
    """
    return normalize_answer(text) or " ".join(text.lower().translate(_NO_PUNCTUATION).split())


def score_answer(answer: str, golds: Sequence[str]) -> AnswerScore:
    """Compare an answer with every gold; each measure is that of the best gold."""
    text = comparable(answer)
    scores = [_one(text, comparable(gold)) for gold in golds]
    if not scores:
        return AnswerScore(0.0, 0.0, 0.0)
    return AnswerScore(*(max(values) for values in zip(*scores, strict=True)))


class CitationScore(NamedTuple):
    """Scores of the cited passages, 0.0 to 1.0 each; None where undefined."""

    citations: int
    """Distinct passages that were cited."""
    citation_retrieved: float | None
    """Share of the cited passages that the agent was shown; None without citations."""
    citation_holds_answer: float | None
    """1.0 if a cited passage that was shown holds an accepted answer; None for yes and no."""
    citation_precision: float | None
    """Share of the cited passages that are supporting ones; None where none is known."""
    citation_recall: float | None
    """Share of the supporting passages that were cited; None where none is known."""


def holds_answer(text: str, golds: Sequence[str]) -> bool:
    """Return whether the words of an accepted answer are in a text, next to each other."""
    words = f" {normalize_answer(text)} "
    return any(f" {gold} " in words for gold in map(normalize_answer, golds) if gold)


def score_citations(
    cited: Sequence[str],
    golds: Sequence[str],
    *,
    seen: Collection[str],
    holding: Collection[str],
    gold_of: Mapping[str, str],
    support: int,
) -> CitationScore:
    """Score the citations of an answer.

    Args:
        cited: ids of passages.
        golds: accepted answers.
        seen: ids of the passages that the agent was shown.
        holding: those of them that hold an accepted answer.
        gold_of: supporting passage that a shown id stands for.
        support: how many supporting passages there are; 0 if they are not known.
    """
    cited = list(dict.fromkeys(cited))
    found = {gold_of[name] for name in cited if name in gold_of}
    closed = all(normalize_answer(gold) in _CLOSED for gold in golds)
    right = sum(name in gold_of for name in cited)
    return CitationScore(
        citations=len(cited),
        citation_retrieved=sum(name in seen for name in cited) / len(cited) if cited else None,
        citation_holds_answer=None if closed else float(any(name in holding for name in cited)),
        citation_precision=right / len(cited) if support and cited else None,
        citation_recall=len(found) / support if support else None,
    )


def _one(said: str, gold: str) -> AnswerScore:
    covered = bool(gold) and f" {gold} " in f" {said} "
    return AnswerScore(float(bool(said) and said == gold), _f1(said, gold), float(covered))


def _f1(said: str, gold: str) -> float:
    if said != gold and (said in _CLOSED or gold in _CLOSED):
        return 0.0
    common = sum((Counter(said.split()) & Counter(gold.split())).values())
    if not common:
        return 0.0
    precision, recall = common / len(said.split()), common / len(gold.split())
    return 2 * precision * recall / (precision + recall)

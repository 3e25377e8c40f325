"""Comparing answers with golds, as the field does."""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AnswerScore", "normalize_answer", "score_answer"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset({"yes", "no", "noanswer"})


class AnswerScore(NamedTuple):
    """How an answer compares with the best of the golds, 0.0 to 1.0 each."""

    em: float
    """1.0 if the normalised texts are equal."""
    f1: float
    """Of the words; 0.0 between a yes or no and anything else."""
    cover: float
    """1.0 if the words of a gold stand in the answer, next to each other."""


def normalize_answer(text: str) -> str:
    """Return text in lower case without punctuation, articles and surplus blanks (as SQuAD)."""
    plain = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def score_answer(answer: str, golds: Sequence[str]) -> AnswerScore:
    """Compare an answer with every gold; each measure is that of the best gold."""
    said = normalize_answer(answer)
    scores = [_one(said, normalize_answer(gold)) for gold in golds]
    if not scores:
        return AnswerScore(0.0, 0.0, 0.0)
    return AnswerScore(*(max(values) for values in zip(*scores, strict=True)))


def _one(said: str, gold: str) -> AnswerScore:
    covered = bool(gold) and f" {gold} " in f" {said} "
    return AnswerScore(float(said == gold), _f1(said, gold), float(covered))


def _f1(said: str, gold: str) -> float:
    if said != gold and (said in _CLOSED or gold in _CLOSED):
        return 0.0
    common = sum((Counter(said.split()) & Counter(gold.split())).values())
    if not common:
        return 0.0
    precision, recall = common / len(said.split()), common / len(gold.split())
    return 2 * precision * recall / (precision + recall)

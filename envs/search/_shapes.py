"""The record formats of question data sets, read into one form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trajgym.envs.search._errors import InvalidCorpus
from trajgym.envs.search._text import passage_id

__all__ = ["Context", "Question", "context_of", "question_of"]


class Context(NamedTuple):
    """A passage that comes with a question."""

    title: str
    text: str
    gold: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The common form of all records.

    Args:
        id: the id of the record; empty if it has none.
        question: the question.
        answers: every accepted answer, the first one preferred.
        gold: ids of the supporting passages.
        gold_titles: titles of the supporting documents, for corpora with other ids.
        hops: sub-questions with their answers, where the data set has them.
        more: type, level and the like.
    """

    id: str
    question: str
    answers: list[str]
    gold: list[str] = field(default_factory=list)
    gold_titles: list[str] = field(default_factory=list)
    hops: list[dict[str, str]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)


_MORE = ("type", "level", "dataset", "data_source", "hop_count")


def question_of(record: dict[str, Any], where: str) -> Question:
    """Read a record of HotpotQA, 2WikiMultihopQA, MuSiQue, Bamboogle, NQ, TriviaQA, or FlashRAG.

    Also their forms in trainers (``golden_answers``, ``reward_model``) and the form of this
    package (``question``, ``answers``, ``gold``).

    Raises:
        InvalidCorpus: the question or the answer is missing; the message names the record and its
            fields.
    """
    try:
        return _question(record, where)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidCorpus):
            raise
        raise InvalidCorpus(f"{where}: malformed question record: {error!r}") from error


def _question(record: dict[str, Any], where: str) -> Question:
    question = record.get("question", record.get("Question"))
    if isinstance(question, dict):  # Natural Questions keeps the tokens beside it
        question = question.get("text")
    answers = [a for a in dict.fromkeys(_answers(record)) if a.strip()]
    if not isinstance(question, str) or not question.strip() or not answers:
        raise InvalidCorpus(
            f"{where}: no question with an answer; its fields are {sorted(record)}",
        )
    golden = [c for c in context_of(record) if c.gold]
    gold = [passage_id(c.title, c.text) for c in golden] or _strings(record, "gold")
    titles = [c.title for c in golden] or _strings(record, "gold_titles")
    return Question(
        id=str(_first(record, "id", "_id", "question_id", "qid") or ""),
        question=question.strip(),
        answers=answers,
        gold=list(dict.fromkeys(gold)),
        gold_titles=list(dict.fromkeys(titles)),
        hops=_hops(record),
        more={key: record[key] for key in _MORE if record.get(key)},
    )


def context_of(record: dict[str, Any]) -> list[Context]:
    """Return the passages that come with a question; empty if it has none."""
    if isinstance(record.get("paragraphs"), list):  # MuSiQue
        return [
            Context(str(p["title"]), str(p["paragraph_text"]), bool(p.get("is_supporting")))
            for p in record["paragraphs"]
        ]
    context = record.get("context")
    if not context or isinstance(context, str):
        return []
    gold = set(_supporting_titles(record))
    if isinstance(context, dict):  # the columnar form of `datasets`
        pairs = list(zip(context["title"], _sentences(context), strict=True))
    else:
        pairs = [(title, sentences) for title, sentences in context]
    return [Context(str(t), " ".join(s.strip() for s in ss), str(t) in gold) for t, ss in pairs]


def _sentences(context: dict[str, Any]) -> list[list[str]]:
    return list(context.get("sentences") or context.get("content") or [])


def _supporting_titles(record: dict[str, Any]) -> list[str]:
    facts = record.get("supporting_facts") or []
    if isinstance(facts, dict):
        return [str(title) for title in facts["title"]]
    return [str(fact[0]) for fact in facts]


def _answers(record: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for key in ("answers", "golden_answers", "answer", "Answer", "answer_aliases"):
        found += _texts(record.get(key))
    if not found and isinstance(record.get("reward_model"), dict):
        truth = record["reward_model"].get("ground_truth")
        found += _texts(truth.get("target") if isinstance(truth, dict) else truth)
    if not found and isinstance(record.get("annotations"), (dict, list)):
        found += _short_answers(record["annotations"])
    return found


def _strings(record: dict[str, Any], key: str) -> list[str]:
    value = record.get(key)
    if value is None:
        return []
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"`{key}` must be a list of strings, got {value!r}")
    return list(value)


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, (int, float)):
        return [str(value)]
    if isinstance(value, dict) and "value" in value:  # TriviaQA
        return [*_texts(value["value"]), *_texts(value.get("aliases"))]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _texts(item)]
    raise TypeError(f"an answer must be a text, got {value!r}")


def _short_answers(annotations: Any) -> list[str]:
    """Return the short answers of Natural Questions, of rows or of columns."""
    if isinstance(annotations, dict):
        groups = annotations.get("short_answers") or []
    else:
        groups = [one.get("short_answers") or [] for one in annotations]
    found: list[str] = []
    for group in groups if isinstance(groups, list) else [groups]:
        for answer in group if isinstance(group, list) else [group]:
            found += _texts(answer.get("text"))
    return found


def _hops(record: dict[str, Any]) -> list[dict[str, str]]:
    """Return the sub-questions, or none where the data set has them in another form."""
    found = record.get("question_decomposition") or record.get("decomposition") or []
    found = found or record.get("hops") or []
    if not isinstance(found, list) or not all(isinstance(hop, dict) for hop in found):
        return []
    hops = [
        {
            "question": str(_first(hop, "query", "question", "q") or ""),
            "answer": str(_first(hop, "answer", "a") or ""),
        }
        for hop in found
    ]
    # Hops refer to each other by number, so none may be omitted.
    return hops if all(hop["question"] and hop["answer"] for hop in hops) else []


def _first(record: dict[str, Any], *keys: str) -> Any:
    return next((record[key] for key in keys if record.get(key) is not None), None)

"""Questions as tasks: from files in common formats, from `datasets`, and built in."""

from __future__ import annotations

import dataclasses
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from trajgym.envs import TaskData
from trajgym.envs._records import read_dataset
from trajgym.envs.search._corpus import iter_records
from trajgym.envs.search._errors import InvalidCorpus
from trajgym.envs.search._score import comparable
from trajgym.envs.search._shapes import question_of
from trajgym.envs.search._text import passage_id
from trajgym.trajectory import InvalidInput, Task

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BUILTIN", "SearchRecord", "builtin_file", "load_tasks"]

BUILTIN = "builtin"
_DATASETS = "hf:"


def _worded(question: str) -> str:
    if not question.strip():
        raise ValueError("the question is empty")
    return question


def _answerable(answers: list[str]) -> list[str]:
    if not any(comparable(answer) for answer in answers):
        raise ValueError("no accepted answer has a letter or digit; none could be matched")
    return answers


def _hop(hop: dict[str, str]) -> dict[str, str]:
    if not (hop.get("query") or hop.get("question")) or "answer" not in hop:
        raise ValueError("a hop needs `question` (or `query`) and `answer`")
    return hop


class SearchRecord(TaskData):
    """``task.data`` of a search task; only the question is ever shown to the agent.

    Attributes:
        question: what is asked.
        answers: every accepted answer, the first one preferred.
        gold: ids of the supporting passages, as far as known.
        gold_titles: their titles, for engines with other ids.
        hops: sub-questions (``question``, ``answer``, perhaps ``query``), for scripts.
        more: type, level and the like.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: Annotated[str, AfterValidator(_worded)]
    answers: Annotated[list[str], AfterValidator(_answerable)]
    gold: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    gold_titles: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    hops: list[Annotated[dict[str, str], AfterValidator(_hop)]] = Field(default_factory=list)
    more: dict[str, Any] = Field(default_factory=dict)

    error: ClassVar[type[InvalidInput]] = InvalidCorpus


def builtin_file(name: str) -> Path:
    """Return a file of the corpus that ships with trajgym."""
    return Path(str(resources.files("trajgym.envs.search") / "data" / "builtin" / name))


def load_tasks(source: str) -> list[Task]:
    """Return the tasks of a source.

    Args:
        source: ``builtin`` (questions about an invented world); a ``.jsonl``, ``.json`` or
            ``.parquet`` file or a folder of them, with records in the form of this package or of
            HotpotQA, 2WikiMultihopQA, MuSiQue, Bamboogle, NQ, TriviaQA or FlashRAG; or
            ``hf:NAME[/CONFIG]:SPLIT``, which `datasets` loads.

    Raises:
        InvalidCorpus: a record lacks a question or an answer, an id is used twice, or there are no
            records.
        MissingExtra: pyarrow or `datasets` is needed and not installed.
    """
    if source == BUILTIN:
        records = iter_records([builtin_file("questions.jsonl")])
    elif source.startswith(_DATASETS):
        found = read_dataset(source.removeprefix(_DATASETS))
        records = ((record.where, record.value) for record in found)
    else:
        records = iter_records([source])
    tasks = _tasks(records)
    if not tasks:
        raise InvalidCorpus(f"{source}: no question there")
    return tasks


def _tasks(records: Iterable[tuple[str, dict[str, Any]]]) -> list[Task]:
    tasks: dict[str, Task] = {}
    for where, record in records:
        task = _task(where, record)
        if task.id in tasks:
            raise InvalidCorpus(f"{where}: the task id {task.id!r} is used twice")
        tasks[task.id] = task
    return list(tasks.values())


def _task(where: str, record: dict[str, Any]) -> Task:
    if "data" in record and not {"question", "Question"} & record.keys():
        try:
            task = Task.model_validate(record)
        except ValidationError as error:
            raise InvalidCorpus(f"{where}: {error.errors(include_url=False)[0]['msg']}") from error
    else:
        found = question_of(record, where)
        name = found.id or f"q-{passage_id('', found.question)}"
        data = {k: v for k, v in dataclasses.asdict(found).items() if k != "id"}
        task = Task(id=name, data=data)
    SearchRecord.of(task, where)
    return task

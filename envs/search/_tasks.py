"""Questions as tasks: from files of the field's shapes, from `datasets`, and our own."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trajgym.envs.search._corpus import iter_records
from trajgym.envs.search._errors import InvalidCorpus
from trajgym.envs.search._shapes import question_of
from trajgym.envs.search._text import passage_id
from trajgym.trajectory import MissingExtra, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["BUILTIN", "SearchRecord", "builtin_file", "load_tasks"]

BUILTIN = "builtin"
_DATASETS = "hf:"


class SearchRecord(BaseModel):
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

    question: str = Field(min_length=1)
    answers: list[str] = Field(min_length=1)
    gold: list[str] = []
    gold_titles: list[str] = []
    hops: list[dict[str, str]] = []
    more: dict[str, Any] = {}

    @classmethod
    def of(cls, task: Task) -> SearchRecord:
        """Read a task.

        Raises:
            InvalidCorpus: its data is no search record; names task and field.
        """
        try:
            return cls.model_validate(task.data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InvalidCorpus(f"task {task.id!r}: field {where!r}: {first['msg']}") from error


def builtin_file(name: str) -> Path:
    """Return a file of the corpus that ships with trajgym."""
    return Path(str(resources.files("trajgym.envs.search") / "data" / "builtin" / name))


def load_tasks(source: str) -> list[Task]:
    """Return the tasks that a source means.

    Args:
        source: ``builtin`` (questions about an invented world); a ``.jsonl``, ``.json`` or
            ``.parquet`` file or a folder of them, with records of our own form or of HotpotQA,
            2WikiMultihopQA, MuSiQue, Bamboogle, NQ, TriviaQA or FlashRAG; or
            ``hf:NAME[/CONFIG]:SPLIT``, which `datasets` loads.

    Raises:
        InvalidCorpus: a record without question or answer, an id used twice, nothing there.
        MissingExtra: pyarrow or `datasets` is needed and not installed.
    """
    if source == BUILTIN:
        records = iter_records([builtin_file("questions.jsonl")])
    elif source.startswith(_DATASETS):
        records = _from_datasets(source.removeprefix(_DATASETS))
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
    if isinstance(record.get("data"), dict) and "question" in record["data"]:
        try:
            task = Task.model_validate(record)
        except ValidationError as error:
            raise InvalidCorpus(f"{where}: {error.errors(include_url=False)[0]['msg']}") from error
        SearchRecord.of(task)
        return task
    found = question_of(record, where)
    data = {
        "question": found.question,
        "answers": found.answers,
        "gold": found.gold,
        "gold_titles": found.gold_titles,
        "hops": found.hops,
        "more": found.more,
    }
    return Task(id=found.id or f"q-{passage_id('', found.question)}", data=data)


def _from_datasets(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("datasets", "search-data") from error
    where, _, split = name.rpartition(":")
    if not where:
        raise InvalidCorpus(f"hf:{name}: write hf:NAME:SPLIT or hf:NAME/CONFIG:SPLIT")
    parts = where.split("/")
    local = Path(where).exists()
    config = parts[2] if len(parts) == 3 and not local else None
    path = where if local else "/".join(parts[:2])
    for number, record in enumerate(datasets.load_dataset(path, config, split=split)):
        yield f"hf:{name}[{number}]", dict(record)

"""Tasks from files, data sets and generators, with typed data."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from trajgym.envs._records import read_records
from trajgym.trajectory import InvalidInput, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trajgym.envs._records import Record, Source

__all__ = ["TaskData", "load_tasks", "problems", "tasks_of"]

_OWN = frozenset({"id", "prompt", "data"})


class TaskData(BaseModel):
    """Base class for the type of an environment's ``Task.data``; set ``Env.task_data`` to it.

    ::

        class SumData(TaskData):
            numbers: list[int]
            answer: int

        class Sums(Env):
            task_data = SumData

            def reset(self, task, seed):
                data = SumData.of(task)

    Unknown fields are rejected, so that misspelt names are found when tasks are loaded.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    error: ClassVar[type[InvalidInput]] = InvalidInput
    """The exception that :meth:`of` raises."""

    @classmethod
    def fields_of(cls, task: Task) -> Mapping[str, Any]:
        """Return the fields of a task; override it if a field may be in the prompt instead."""
        return task.data

    @classmethod
    def of(cls, task: Task, where: str = "") -> Self:
        """Read and check the data of a task.

        Args:
            task: the task.
            where: file and line, for the error.

        Raises:
            InvalidInput: the data is invalid; the message names the place, the task and every
                field that is missing or malformed.
        """
        try:
            return cls.model_validate(cls.fields_of(task))
        except ValidationError as error:
            name = f"{where}: task {task.id!r}" if where else f"task {task.id!r}"
            raise cls.error(f"{name}: {problems(error)}") from error


def problems(error: ValidationError) -> str:
    """Return a one-line description of the errors, by field."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(
        f"field {'.'.join(map(str, one['loc']))!r}: {one['msg']}" if one["loc"] else one["msg"]
        for one in found
    )


def load_tasks(
    source: Source,
    *,
    data: type[TaskData] | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[Task]:
    """Return the tasks of a source.

    JSON documents and generators contain tasks of the form ``{"id": ..., "prompt": ...,
    "data": {...}}``. A row of a table (CSV, Parquet, a data set) may have these columns as well;
    otherwise, its columns ``id`` and ``prompt`` are those of the task, and all other columns are
    its data. A row without an id is named after the table and the row, such as ``questions-17``.
    An empty cell of a CSV file is an absent field; other cells are strings, which the type of the
    data converts.

    Args:
        source: a ``.jsonl``, ``.json``, ``.csv`` or ``.parquet`` file, or a folder of these;
            ``hf:NAME:SPLIT`` for a Hugging Face data set (the name may be the path of a folder);
            ``package.module:function`` for a generator; or tasks, dicts, or a function that returns
            them.
        data: type of the tasks' data; if given, the data is validated.
        columns: the columns that hold the ``id`` and the ``prompt``, if they have other names.

    Raises:
        InvalidInput: there is no such source, a record is malformed, a field is missing or unknown,
            or an id is used twice; the message names the file, the line or row, and the field.
        MissingExtra: the format needs a package that is not installed.
    """
    return tasks_of(read_records(source), data=data, columns=columns)


def tasks_of(
    records: Iterable[Record],
    *,
    data: type[TaskData] | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[Task]:
    """Return the tasks of records; see :func:`load_tasks`."""
    tasks: list[Task] = []
    seen: dict[str, str] = {}
    for record in records:
        task = _task(record, columns or {})
        if data is not None:
            data.of(task, record.where)
        if task.id in seen:
            raise InvalidInput(
                f"{record.where}: the task id {task.id!r} is used twice, first at {seen[task.id]}"
            )
        seen[task.id] = record.where
        tasks.append(task)
    return tasks


def _task(record: Record, columns: Mapping[str, str]) -> Task:
    value = _renamed(record, columns)
    if record.table:
        value = _row(record, value)
    try:
        return Task.model_validate(value)
    except ValidationError as error:
        raise InvalidInput(f"{record.where}: task {problems(error)}") from error


def _renamed(record: Record, columns: Mapping[str, str]) -> dict[str, Any]:
    value = dict(record.value)
    if unknown := set(columns) - {"id", "prompt"}:
        raise InvalidInput(f"columns: {sorted(unknown)} can't be chosen; only id and prompt can")
    for name, column in columns.items():
        if column not in value:
            raise InvalidInput(
                f"{record.where}: no column {column!r} for the {name}; there are {sorted(value)}"
            )
        value[name] = value.pop(column)
    return value


def _row(record: Record, value: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a table as the fields of a task."""
    value = {key: _plain(cell, f"{record.where}: field {key!r}") for key, cell in value.items()}
    if isinstance(value.get("data"), str) and value.keys() <= _OWN:
        try:
            value["data"] = json.loads(value["data"])
        except ValueError as error:
            raise InvalidInput(f"{record.where}: field 'data': not JSON: {error}") from error
    name = value.pop("id", None)
    own = {"id": f"{record.table}-{record.row}" if name is None else str(name)}
    if (prompt := value.pop("prompt", None)) is not None:
        own["prompt"] = prompt
    if value.keys() == {"data"} and isinstance(value["data"], dict):
        return own | value
    return own | {"data": {key: cell for key, cell in value.items() if cell is not None}}


def _plain(value: Any, where: str) -> Any:
    """Return a cell as JSON values; dates in ISO form.

    Raises:
        InvalidInput: the cell has another type, such as bytes or an image.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_plain(one, where) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one, where) for key, one in value.items()}
    raise InvalidInput(
        f"{where}: {value!r:.80} is not a JSON value; leave the column out, or convert it in "
        "a generator of tasks",
    )

"""Tasks as the elements of AReaL's data loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trajgym.trajectory import InvalidInput, Task

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["read_task", "task_dataset"]

_COLUMN = "trajgym_task"


def task_dataset(tasks: Iterable[Task]) -> list[dict[str, str]]:
    """Return tasks as a data set for AReaL: one column of JSON, which Arrow leaves as it is.

    Raises:
        InvalidInput: no tasks, or ids that are used twice.
    """
    known = list(tasks)
    ids = {task.id for task in known}
    if not known or len(ids) != len(known):
        raise InvalidInput(f"{len(known)} tasks with {len(ids)} ids: give each its own")
    return [{_COLUMN: task.model_dump_json()} for task in known]


def read_task(data: Any) -> Task:
    """Return the task of a data loader's element.

    Raises:
        InvalidInput: it was not made by :func:`task_dataset`.
    """
    try:
        return Task.model_validate_json(data[_COLUMN])
    except (KeyError, TypeError, IndexError, ValidationError) as error:
        raise InvalidInput(
            f"an element of the data loader is {str(data)[:200]}: make the data set with "
            "trajgym.adapters.areal.task_dataset",
        ) from error

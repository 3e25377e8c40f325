"""Tasks and recorded groups as elements of AReaL's data loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trajgym.envs import EnvSpec
from trajgym.trajectory import InvalidInput, Run, Task

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

__all__ = [
    "as_spec",
    "feed_dataset",
    "read_replay",
    "read_task",
    "replay_dataset",
    "task_dataset",
]

_TASK = "trajgym_task"
_GROUP = "trajgym_group"


def task_dataset(tasks: Iterable[Task]) -> list[dict[str, str]]:
    """Return tasks as a data set for AReaL, with one column of JSON strings.

    Raises:
        InvalidInput: there are no tasks, or two tasks have the same id.
    """
    known = list(tasks)
    ids = {task.id for task in known}
    if not known or len(ids) != len(known):
        raise InvalidInput(f"{len(known)} tasks have {len(ids)} ids; ids must differ")
    return [{_TASK: task.model_dump_json()} for task in known]


def read_task(data: Any) -> Task:
    """Return the task of an element of the data loader.

    Raises:
        InvalidInput: it was not made by :func:`task_dataset`.
    """
    try:
        return Task.model_validate_json(_field(data, _TASK, "task_dataset"))
    except ValidationError as error:
        raise InvalidInput(f"an element of the data loader is not a task: {error}") from error


def replay_dataset(run: str | os.PathLike[str]) -> list[dict[str, str]]:
    """Return a run's sealed groups, oldest first, as a data set for :class:`ReplayWorkflow`.

    Raises:
        InvalidInput: no group of the run is sealed.
    """
    with Run(run) as opened:
        found = [{_GROUP: group.id} for group in opened.groups() if group.sealed]
    if not found:
        raise InvalidInput(f"{run}: no group is sealed; there is nothing to replay")
    return found


def feed_dataset(groups: int) -> list[dict[str, str]]:
    """Return a data set for :class:`FeedWorkflow`; an epoch has as many groups.

    Raises:
        InvalidInput: there is less than one group.
    """
    if groups < 1:
        raise InvalidInput(f"a data set of {groups} groups; expected at least 1")
    return [{"trajgym_feed": str(number)} for number in range(groups)]


def read_replay(data: Any) -> str:
    """Return the group id of an element of the data loader.

    Raises:
        InvalidInput: it was not made by :func:`replay_dataset`.
    """
    return _field(data, _GROUP, "replay_dataset")


def as_spec(env: EnvSpec | str | Mapping[str, Any]) -> EnvSpec:
    """Return a spec given as a spec, an id, or JSON.

    Raises:
        InvalidInput: the JSON is not that of a spec.
    """
    if isinstance(env, EnvSpec):
        return env
    return EnvSpec.from_json({"id": env} if isinstance(env, str) else env, "env")


def _field(data: Any, name: str, maker: str) -> str:
    try:
        found = data[name]
    except (KeyError, TypeError, IndexError):
        found = None
    if not isinstance(found, str):
        raise InvalidInput(
            f"an element of the data loader is {str(data)[:200]}: make the data set with "
            f"trajgym.adapters.areal.{maker}",
        )
    return found

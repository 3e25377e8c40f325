"""Tasks as a data set for verl's RL trainers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.adapters.verl._settings import COLUMN, column_value
from trajgym.trajectory import InvalidInput, Task
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from trajgym.envs import Budgets, EnvSpec

__all__ = ["write_prompts"]

_ROWS = 1024


def write_prompts(
    path: str | os.PathLike[str],
    tasks: Iterable[Task | tuple[Task, EnvSpec]],
    env: EnvSpec | None = None,
    *,
    budgets: Budgets | None = None,
    split: str = "train",
    agent: str = "trajgym",
) -> int:
    """Write a parquet file for ``data.train_files`` or ``data.val_files``; return its row count.

    A row's environment and task are one JSON string in the column ``trajgym``, because columnar
    readers merge structs with different keys. The other columns are the same in every file, so
    files of different environments can be combined.

    Args:
        path: of the file; an existing file is replaced.
        tasks: read once; tasks, or pairs of a task and its environment.
        env: for tasks without an environment; with None it is taken from the section ``trajgym``.
        budgets: of every session, instead of the environment's own.
        split: written to ``extra_info``.
        agent: name of the agent loop.

    Raises:
        InvalidInput: there are no tasks.
        MissingExtra: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra("pyarrow", "data") from error
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    schema = _schema(pa)
    rows = _rows(tasks, env, budgets, split, agent)
    count = 0
    try:
        with pq.ParquetWriter(part, schema) as writer:
            while batch := list(itertools.islice(rows, _ROWS)):
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                count += len(batch)
        if not count:
            raise InvalidInput(f"{path}: there are no tasks to write")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return count


def _rows(
    tasks: Iterable[Task | tuple[Task, EnvSpec]],
    env: EnvSpec | None,
    budgets: Budgets | None,
    split: str,
    agent: str,
) -> Iterator[dict[str, Any]]:
    for index, one in enumerate(tasks):
        task, own = (one, env) if isinstance(one, Task) else one
        yield {
            "prompt": [{"role": "user", "content": task.prompt or task.id}],
            "data_source": "trajgym" if own is None else own.id,
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index, "split": split},
            "agent_name": agent,
            COLUMN: column_value(task, own, budgets),
        }


def _schema(pa: Any) -> Any:
    text = pa.string()
    message = pa.struct([("role", text), ("content", text)])
    return pa.schema(
        [
            ("prompt", pa.list_(message)),
            ("data_source", text),
            ("ability", text),
            ("reward_model", pa.struct([("style", text), ("ground_truth", text)])),
            ("extra_info", pa.struct([("index", pa.int64()), ("split", text)])),
            ("agent_name", text),
            (COLUMN, text),
        ],
    )

"""Reading tasks from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trajgym.trajectory import InvalidInput, Task

__all__ = ["load_tasks", "read_records"]


def load_tasks(source: str) -> list[Task]:
    """Read tasks in our own form: ``{"id": ..., "prompt": ..., "data": {...}}``.

    Args:
        source: a ``.jsonl`` or ``.json`` file, or a directory of such files.

    Raises:
        InvalidInput: no such file, malformed JSON, a missing or unknown field, an id used twice;
            the message names file, record and field.
    """
    tasks: list[Task] = []
    seen: set[str] = set()
    for where, record in read_records(source):
        try:
            task = Task.model_validate(record)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise InvalidInput(f"{where}: task field {field!r}: {first['msg']}") from error
        if task.id in seen:
            raise InvalidInput(f"{where}: the task id {task.id!r} is used twice")
        seen.add(task.id)
        tasks.append(task)
    return tasks


def read_records(source: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the JSON objects of a file or directory, each with where it stands.

    Raises:
        InvalidInput: nothing there, malformed JSON, or something that is not an object.
    """
    path = Path(source)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in {".json", ".jsonl"})
        return [entry for file in files for entry in read_records(str(file))]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"tasks {source!r} can't be read: {error}") from error
    records: list[tuple[str, object]] = []
    try:
        if path.suffix == ".jsonl":
            for number, line in enumerate(text.splitlines(), 1):
                where = f"{path}:{number}"
                if line.strip():
                    records.append((where, json.loads(line)))
        else:
            where = str(path)
            loaded = json.loads(text)
            many = loaded if isinstance(loaded, list) else [loaded]
            records = [(f"{path}[{i}]", record) for i, record in enumerate(many)]
    except ValueError as error:
        raise InvalidInput(f"{where}: not JSON: {error}") from error
    for where, record in records:
        if not isinstance(record, dict):
            raise InvalidInput(f"{where}: expected an object, got {type(record).__name__}")
    return [(where, record) for where, record in records if isinstance(record, dict)]

"""Licences of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trajgym.trajectory._records import Task

__all__ = ["task_licence"]

_KEYS = ("license", "licence", "spdx", "spdx_id", "license_name")
_PARTS = ("provenance", "metadata", "source", "repo_info")
"""Parts of a task's data that state it in data sets of tasks; SWE recipes have ``provenance``."""


def task_licence(task: Task | None) -> str | None:
    """Return the licence that a task's data states, None if it states none.

    It is the text under ``license``, ``licence`` or ``spdx`` of the data, or of its part
    ``provenance``, which the tasks that trajgym makes from packages and repositories have.
    """
    if task is None:
        return None
    parts: list[Any] = [task.data, *(task.data.get(name) for name in _PARTS)]
    for part in parts:
        if not isinstance(part, dict):
            continue
        for key in _KEYS:
            if isinstance(found := part.get(key), str) and found.strip():
                return " ".join(found.split())
    return None

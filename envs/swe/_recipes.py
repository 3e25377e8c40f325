"""Recipes: facts from which a task is built, without carrying anybody's source."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.envs.swe._cache import build_once, cache_root, content_key
from trajgym.envs.swe._errors import InvalidTask
from trajgym.envs.swe._record import FileSource, SweRecord, read_records
from trajgym.envs.swe._sources import TREE_FORMAT, base_tree, patches_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.trajectory import Task

__all__ = ["build_task", "builtin_names", "load_tasks", "recipe_names"]


_DEMO = (
    "andialbrecht__sqlparse-0.5.0-to-0.5.1",
    "pallets__jinja-3.1.2-to-3.1.3",
    "hunk-boltons-23.1.0-boltons_cacheutils-L238",
    "hunk-sqlparse-0.5.1-sqlparse_engine_statement_splitter-L62",
    "hunk-sqlparse-0.5.1-sqlparse_filters_others-L94",
    "hunk-sqlparse-0.5.1-sqlparse_keywords-L74",
)


def recipe_names() -> list[str]:
    """Return the ids of the recipes of real tasks, sorted. Building one needs the package index."""
    return sorted(_shipped("recipes"))


def builtin_names() -> list[str]:
    """Return the ids of the tasks that this package ships whole, sorted. They need no index."""
    return sorted(_shipped("builtin"))


def load_tasks(source: str | Path | Iterable[str], *, cache_dir: Path | None = None) -> list[Task]:
    """Return tasks from a file, a folder, or by name.

    Args:
        source: path of a ``.json`` or ``.jsonl`` file or of a folder of them; ``"builtin"`` (two
            tasks that need no index); ``"recipes"`` (real tasks, built at first use); ``"demo"``
            (six quick ones of these); or one or several task ids out of :func:`builtin_names` and
            :func:`recipe_names`.
        cache_dir: instead of the user's cache.

    Raises:
        InvalidTask: no such file or name, or a record with missing fields.
        SourceUnavailable: a recipe's sources can't be had from the package index.
    """
    if isinstance(source, str | Path):
        if str(source) == "builtin":
            source = builtin_names()
        elif str(source) == "recipes":
            source = recipe_names()
        elif str(source) == "demo":
            source = _DEMO
        elif isinstance(source, Path) or _looks_like_path(source):
            return [record.to_task() for record in read_records(Path(source))]
        else:
            source = [str(source)]
    return [_by_name(name, cache_dir) for name in source]


def build_task(recipe: dict[str, Any], cache_dir: Path | None = None) -> Task:
    """Build a task from a recipe, or take it from the cache.

    A recipe is a record without ``base_commit``, ``patch`` and ``test_patch``: these are made from
    its ``source``. Nothing of the fetched code is run.

    Raises:
        InvalidTask: the recipe lacks something.
        SourceUnavailable: see :func:`load_tasks`.
    """
    placeholders = {"base_commit": "", "patch": "", "test_patch": ""}
    draft = SweRecord.parse({**recipe, **placeholders}, "recipe")
    source = draft.source
    if source is None or isinstance(source, FileSource):
        raise InvalidTask(f"recipe {draft.instance_id!r}: source must name two releases")
    key = content_key(TREE_FORMAT, recipe)
    target = cache_root(cache_dir) / "swe-tasks" / f"{draft.instance_id.replace('/', '_')}-{key}"

    def build(work: Path) -> None:
        commit, patch, test_patch = patches_of(source, cache_dir)
        made = {**recipe, "base_commit": commit, "patch": patch, "test_patch": test_patch}
        (work / "record.json").write_text(json.dumps(made, indent=1))

    record = read_records(build_once(target, build) / "record.json")[0]
    base_tree(record, cache_dir)
    return record.to_task()


def _looks_like_path(source: str) -> bool:
    return source.endswith((".json", ".jsonl")) or "/" in source or Path(source).exists()


def _by_name(name: str, cache_dir: Path | None) -> Task:
    builtin, recipes = _shipped("builtin"), _shipped("recipes")
    if name in builtin:
        return SweRecord.parse(builtin[name], f"builtin task {name!r}").to_task()
    if name in recipes:
        return build_task(recipes[name], cache_dir)
    raise InvalidTask(f"no task file or task {name!r}; known: {sorted([*builtin, *recipes])}")


def _shipped(kind: str) -> dict[str, dict[str, Any]]:
    """Return the documents of a data folder by instance id."""
    root = resources.files("trajgym.envs.swe").joinpath("data", kind)
    found: dict[str, dict[str, Any]] = {}
    for entry in root.iterdir():
        file = entry.joinpath("task.json") if entry.is_dir() else entry
        if file.name.endswith(".json") and file.is_file():
            data = json.loads(file.read_text("utf-8"))
            found[data["instance_id"]] = data
    return found

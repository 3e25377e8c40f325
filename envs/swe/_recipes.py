"""Recipes: facts from which a task is built without distributing its source."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.envs.swe._cache import build_once, cache_root, content_key
from trajgym.envs.swe._corpus import corpus_recipes, expand
from trajgym.envs.swe._errors import InvalidTask
from trajgym.envs.swe._import import rows_of
from trajgym.envs.swe._record import FileSource, InlineSource, SweRecord, documents
from trajgym.envs.swe._sources import TREE_FORMAT, base_tree, patches_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.trajectory import Task

__all__ = ["build_task", "builtin_names", "corpus_names", "load_tasks", "recipe_names"]


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
    """Return the ids of the tasks that this package contains, sorted; they need no index."""
    return sorted(_shipped("builtin"))


def corpus_names() -> list[str]:
    """Return the ids of the corpus: validated bugs in releases, built at first use."""
    return sorted(corpus_recipes())


def load_tasks(source: str | Path | Iterable[str], *, cache_dir: Path | None = None) -> list[Task]:
    """Return tasks from a file, a folder, or by name.

    Args:
        source: path of a ``.json``, ``.jsonl``, ``.parquet`` or ``.arrow`` file of records or
            recipes, or of a folder of them; ``"builtin"`` (two
            tasks that need no index); ``"recipes"`` (real tasks, built at first use); ``"demo"``
            (six fast ones of these); ``"corpus"`` (see :func:`corpus_names`); or one or several
            task ids out of these.
        cache_dir: instead of the user's cache.

    Raises:
        InvalidTask: no such file or name, or a record with missing fields.
        SourceUnavailable: a recipe's sources can't be fetched from the package index.
    """
    if isinstance(source, str | Path):
        if str(source) == "builtin":
            source = builtin_names()
        elif str(source) == "recipes":
            source = recipe_names()
        elif str(source) == "demo":
            source = _DEMO
        elif str(source) == "corpus":
            source = corpus_names()
        elif isinstance(source, Path) or _looks_like_path(source):
            return _from_files(Path(source), cache_dir)
        else:
            source = [str(source)]
    return [_by_name(name, cache_dir) for name in source]


def build_task(recipe: dict[str, Any], cache_dir: Path | None = None) -> Task:
    """Build a task from a recipe, or read it from the cache.

    A recipe is a record without ``base_commit``, ``patch`` and ``test_patch``: these are made from
    its ``source``. None of the fetched code is run.

    Raises:
        InvalidTask: the recipe is incomplete.
        SourceUnavailable: see :func:`load_tasks`.
    """
    placeholders = {"base_commit": "", "patch": "", "test_patch": ""}
    draft = SweRecord.parse({**recipe, **placeholders}, "recipe")
    source = draft.source
    if source is None or isinstance(source, FileSource | InlineSource):
        raise InvalidTask(
            f"recipe {draft.instance_id!r}: source must name two releases, or another pair of sides"
        )
    key = content_key(TREE_FORMAT, recipe)
    target = cache_root(cache_dir) / "swe-tasks" / f"{draft.instance_id.replace('/', '_')}-{key}"

    def build(work: Path) -> None:
        commit, patch, test_patch = patches_of(source, cache_dir)
        made = {**recipe, "base_commit": commit, "patch": patch, "test_patch": test_patch}
        (work / "record.json").write_text(json.dumps(made, indent=1))

    ((where, made),) = documents(build_once(target, build) / "record.json")
    record = SweRecord.parse(made, where)
    base_tree(record, cache_dir)
    return record.to_task()


def _from_files(path: Path, cache_dir: Path | None) -> list[Task]:
    """Return the tasks of a file or folder; unlike in an import, one invalid record is an error."""
    if not path.exists():
        raise InvalidTask(f"{path}: no such task file; give a file of records, or a folder of them")
    tasks: dict[str, Task] = {}
    for where, row in rows_of(path):
        for task in _tasks_in(where, row, cache_dir):
            if task.id in tasks:
                raise InvalidTask(f"{where}: instance_id {task.id!r} occurs twice")
            tasks[task.id] = task
    return list(tasks.values())


def _tasks_in(where: str, row: Any, cache_dir: Path | None) -> list[Task]:
    """Return the tasks of one row: a record, a recipe, or a document of recipes."""
    if not isinstance(row, dict) or "patch" in row or not isinstance(row.get("source"), dict):
        return [SweRecord.parse(row, where).to_task()]
    recipes = expand(row) if "tasks" in row else [row]
    return [build_task(recipe, cache_dir) for recipe in recipes]


def _looks_like_path(source: str) -> bool:
    return (
        source.endswith((".json", ".jsonl", ".parquet", ".arrow"))
        or "/" in source
        or Path(source).exists()
    )


def _by_name(name: str, cache_dir: Path | None) -> Task:
    builtin, recipes = _shipped("builtin"), _shipped("recipes")
    if name in builtin:
        return SweRecord.parse(builtin[name], f"builtin task {name!r}").to_task()
    if name in recipes:
        return build_task(recipes[name], cache_dir)
    corpus = corpus_recipes()
    if name in corpus:
        return build_task(corpus[name], cache_dir)
    known = sorted([*builtin, *recipes])
    raise InvalidTask(f"no task file or task {name!r}; known: {known} and {len(corpus)} of corpus")


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

"""Packs the recipes of one release into one small document, and unpacks them.

The recipes of a release share archive, installation, licence and tests: a document contains these
once, and what is specific to each task. PASS_TO_PASS is all of the release's tests that are not in
its FAIL_TO_PASS.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from trajgym.envs.swe._errors import InvalidTask

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["corpus_recipes", "expand", "pack", "write_corpus"]

_SHARED = ("repo", "version", "install_config", "provenance")
_SAME_SOURCE = ("kind", "package", "base", "fixed")


def pack(recipes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return documents of the recipes, one per release and kind.

    Raises:
        InvalidTask: the source of a recipe is not a release with a bug or a hunk in one file.
    """
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for recipe in recipes:
        if recipe["source"]["kind"] not in {"pypi-mutation", "pypi-hunk"}:
            raise InvalidTask(f"recipe {recipe['instance_id']!r} is in a file of its own")
        shared = {name: recipe[name] for name in _SHARED}
        source = {key: value for key, value in recipe["source"].items() if key in _SAME_SOURCE}
        tests = sorted([*recipe["FAIL_TO_PASS"], *recipe["PASS_TO_PASS"]])
        groups[json.dumps([shared, source, tests], sort_keys=True)].append(recipe)
    return [_document(json.loads(key), members) for key, members in sorted(groups.items())]


def _document(same: list[Any], members: list[dict[str, Any]]) -> dict[str, Any]:
    shared, source, tests = same
    at = {test: number for number, test in enumerate(tests)}
    tasks = [
        {
            "instance_id": recipe["instance_id"],
            "place": {k: v for k, v in recipe["source"].items() if k not in _SAME_SOURCE},
            "fails": [at[test] for test in recipe["FAIL_TO_PASS"]],
        }
        for recipe in sorted(members, key=lambda recipe: str(recipe["instance_id"]))
    ]
    return {**shared, "source": source, "tests": tests, "tasks": tasks}


def expand(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the recipes of a document, as :func:`trajgym.envs.swe.build_task` takes them.

    Raises:
        InvalidTask: the document lacks something.
    """
    try:
        tests = document["tests"]
        recipes = []
        for task in document["tasks"]:
            fails = set(task["fails"])
            recipe = {name: document[name] for name in _SHARED}
            recipe |= {
                "instance_id": task["instance_id"],
                "source": {**document["source"], **task["place"]},
                "FAIL_TO_PASS": [tests[number] for number in sorted(fails)],
                "PASS_TO_PASS": [t for number, t in enumerate(tests) if number not in fails],
            }
            recipe["problem_statement"] = statement_of(recipe)
            recipes.append(recipe)
    except (KeyError, TypeError, IndexError) as error:
        raise InvalidTask(f"corpus document: {type(error).__name__}: {error}") from error
    return recipes


def statement_of(recipe: dict[str, Any]) -> str:
    """Return a problem statement that names the failing tests, but not the place of the bug."""
    about, failing = recipe["provenance"], sorted(recipe["FAIL_TO_PASS"])
    shown = "".join(f"\n- {test}" for test in failing[:10])
    more = f"\n- and {len(failing) - 10} more" if len(failing) > 10 else ""
    return (
        f"{about['package']} {about['version']} has a bug: tests that describe what it should do "
        "fail. Find the cause in the source and fix it, without changing what else works.\n\n"
        f"Failing tests:{shown}{more}"
    )


def write_corpus(recipes: Iterable[dict[str, Any]], folder: Path) -> list[Path]:
    """Write packed recipes, one file per release and kind; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for document in pack(recipes):
        about, kind = document["provenance"], document["source"]["kind"]
        path = folder / f"{about['package'].lower()}-{about['version']}-{kind}.json"
        rows = ",\n".join(f"  {json.dumps(task)}" for task in document["tasks"])
        tests = ",\n".join(f"  {json.dumps(test)}" for test in document["tests"])
        head = {k: v for k, v in document.items() if k not in {"tests", "tasks"}}
        text = json.dumps(head, indent=1)[:-2]
        path.write_text(f'{text},\n "tasks": [\n{rows}\n ],\n "tests": [\n{tests}\n ]\n}}\n')
        written.append(path)
    return written


@cache
def corpus_recipes() -> dict[str, dict[str, Any]]:
    """Return the recipes of the corpus that this package ships, by instance id."""
    root = resources.files("trajgym.envs.swe").joinpath("data", "corpus")
    if not root.is_dir():
        return {}
    files = sorted((f for f in root.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    recipes = [recipe for file in files for recipe in expand(json.loads(file.read_text("utf-8")))]
    return {recipe["instance_id"]: recipe for recipe in recipes}

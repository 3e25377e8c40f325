"""Collections of several environments in TOML files."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs import Budgets, EnvSpec
from trajgym.rollout.mixture._curriculum import Curriculum
from trajgym.rollout.mixture._mixture import Mixture, Part
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    import os
    from collections.abc import Collection

__all__ = ["PART_KEYS", "Tables", "load_mixture", "read_tables"]

PART_KEYS = frozenset({"env", "tasks", "set", "samples", "turns", "name"})
"""Keys of a table that describes the collection of one environment."""
_MIX_KEYS = PART_KEYS | {"weight", "limit"}
_TOP_KEYS = ("groups", "repeat", "shuffle")


class Tables(NamedTuple):
    """The content of a file."""

    parts: dict[str, dict[str, Any]]
    """The tables by name, which is the environment's id if the table has none."""
    rest: dict[str, Any]
    """Other keys of the file."""


def read_tables(
    path: str | os.PathLike[str], table: str, keys: Collection[str] = PART_KEYS
) -> Tables:
    """Read a TOML file with one table for each environment.

    Args:
        path: of the file.
        table: name of the tables: ``[[<table>]]``.
        keys: what a table may have; it must have ``env`` and ``tasks``.

    Raises:
        InvalidInput: the file can't be read, a key is unknown or missing, or a name is used twice.
    """
    path = Path(path)
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: {error}") from error
    given = found.pop(table, None)
    if not isinstance(given, list) or not given:
        raise InvalidInput(f"{path}: no [[{table}]] table; write one with env and tasks")
    parts: dict[str, dict[str, Any]] = {}
    for number, part in enumerate(given, 1):
        where = f"{path}: [[{table}]] {number}"
        if unknown := sorted(set(part) - set(keys)):
            raise InvalidInput(f"{where}: unknown key {unknown[0]!r}; it has {sorted(keys)}")
        if missing := {"env", "tasks"} - set(part):
            raise InvalidInput(f"{where}: {sorted(missing)[0]} is missing")
        name = str(part.get("name", part["env"])).replace(":", "-").replace("/", "-")
        if name in parts:
            raise InvalidInput(f"{where}: another table is called {name!r}; give it a name")
        parts[name] = part
    return Tables(parts, found)


def load_mixture(path: str | os.PathLike[str]) -> Mixture:
    """Read a mixture from a TOML file, and its environments' tasks.

    ::

        groups = 500
        repeat = true

        [curriculum]
        revisit = 50

        [[mix]]
        env = "swe"
        tasks = "builtin"
        weight = 2
        limit = 8
        turns = 30
        set = { twins = false }

        [[mix]]
        env = "dialogue-rental"
        tasks = "builtin"

    A ``[[mix]]`` table has ``env`` and ``tasks``, and may have ``name``, ``set`` (settings of the
    environment), ``turns``, and ``samples``, ``weight`` and ``limit`` as in :class:`Part`. The file
    may have ``groups``, ``repeat`` and ``shuffle`` as in :class:`Mixture`, and a ``[curriculum]``
    table as in :class:`Curriculum`.

    Raises:
        InvalidInput: the file can't be read, a key is unknown or missing, or a value is invalid.
        UnknownEnv: an environment does not exist.
    """
    parts, rest = read_tables(path, "mix", _MIX_KEYS)
    rule = rest.pop("curriculum", None)
    if unknown := sorted(set(rest) - set(_TOP_KEYS)):
        raise InvalidInput(
            f"{path}: unknown key {unknown[0]!r}; beside [[mix]] and [curriculum] there are "
            f"{', '.join(_TOP_KEYS)}"
        )
    known = {one.name for one in fields(Curriculum)}
    if rule is not None and (unknown := sorted(set(rule) - known)):
        raise InvalidInput(f"{path}: [curriculum] has no {unknown[0]!r}; it has {sorted(known)}")
    made = [_part(f"{path}: {name}", name, part) for name, part in parts.items()]
    return Mixture(made, **rest, curriculum=None if rule is None else Curriculum(**rule))


def _part(where: str, name: str, given: dict[str, Any]) -> Part:
    spec = EnvSpec(id=given["env"], config=given.get("set", {}))
    env = spec.resolve()
    spec.make()
    tasks = env.load_tasks(given["tasks"])
    if not tasks:
        raise InvalidInput(f"{where}: tasks {given['tasks']!r}: there is no task")
    budgets = None
    if "turns" in given:
        budgets = Budgets.from_json({**asdict(env.budgets), "turns": given["turns"]})
    values = {key: given[key] for key in ("samples", "weight", "limit") if key in given}
    return Part(name=name, spec=spec, tasks=tasks, budgets=budgets, **values)

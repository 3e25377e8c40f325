"""What a session in verl is made of: settings of the run, and one JSON column of the data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trajgym.envs import Budgets, EnvSpec
from trajgym.rewards import get_deriver
from trajgym.rollout import EntropyExpansion, SurprisalExpansion, TreeExpansion
from trajgym.trajectory import InvalidInput, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.rewards import Deriver
    from trajgym.rollout import Expansion

__all__ = ["COLUMN", "LoopSettings", "Named", "Work", "column_value", "read_settings"]

COLUMN = "trajgym"
"""Column of the data, and section of verl's configuration."""

_EXPANSIONS: dict[str, type[EntropyExpansion | SurprisalExpansion | TreeExpansion]] = {
    "entropy": EntropyExpansion,
    "surprisal": SurprisalExpansion,
    "tree": TreeExpansion,
}
_STRICT = ConfigDict(frozen=True, extra="forbid")


class Named(BaseModel):
    """Something registered by name, with its settings.

    Attributes:
        name: of a deriver, or ``tree``, ``surprisal``, ``entropy`` for an expansion.
        settings: its own.
    """

    model_config = _STRICT

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)


class LoopSettings(BaseModel):
    """Section ``trajgym`` of verl's configuration, or the keys of an agent loop's YAML entry.

    Attributes:
        env: the environment, unless each row of the data names its own.
        budgets: of every session, instead of the environment's own; rows may have theirs.
        rewards: derivers whose rewards, added up, become ``rm_scores``; they see one session.
        deriver: advantages of whole groups, by the trainers ``trajgym_*``.
        expansion: grows each session into a tree; needs ``deriver``.
        outputs: ``all`` rows of a session (V1), or the ``main`` one (V0, fully async).
        max_tokens: most response tokens of a turn.
        deadline: wall-clock seconds of an attempt.
        turn_timeout: seconds until an engine that does not answer counts as unavailable.
        concurrency: sessions at once in a worker process; None leaves it to verl.
        retries: further tries of a session that failed.
        seed: environments' seeds derive from it and the task.
        store: directory where every worker process records its sessions; None records nothing.
        trainer: set by the trainers ``trajgym_*``; leave it out.
    """

    model_config = _STRICT

    env: EnvSpec | None = None
    budgets: dict[str, Any] | None = None
    rewards: tuple[Named, ...] = (Named(name="outcome"),)
    deriver: Named | None = None
    expansion: Named | None = None
    outputs: Literal["all", "main"] = "all"
    max_tokens: int = Field(default=4096, ge=1)
    deadline: float = Field(default=6 * 3600.0, gt=0)
    turn_timeout: float = Field(default=600.0, gt=0)
    concurrency: int | None = Field(default=None, ge=1)
    retries: int = Field(default=0, ge=0)
    seed: int = 0
    store: str | None = None
    trainer: str = ""

    def reward_derivers(self) -> list[Deriver]:
        """Return the derivers of rewards.

        Raises:
            InvalidInput: none, one that is unknown, or one that compares the sessions of a group.
        """
        found = [get_deriver(one.name, **one.settings) for one in self.rewards]
        for deriver in found:
            if deriver.group_relative:
                raise InvalidInput(
                    f"trajgym.rewards: {deriver.name!r} compares the sessions of a group, and a "
                    "worker sees one of them: set it as trajgym.deriver, with a trainer trajgym_*",
                )
        if not found:
            raise InvalidInput("trajgym.rewards is empty: leave it out for the outcome's score")
        return found

    def group_deriver(self) -> Deriver | None:
        """Return the deriver of advantages, if one is set.

        Raises:
            InvalidInput: it is unknown, or no trainer would use it.
        """
        if self.deriver is None:
            return None
        deriver = get_deriver(self.deriver.name, **self.deriver.settings)
        if not self.trainer:
            raise InvalidInput(
                f"trajgym.deriver is {deriver.name!r}, which only our trainers use: set "
                "trainer.v1.trainer_mode to trajgym_sync, trajgym_colocate_async or "
                "trajgym_separate_async",
            )
        return deriver

    def session_expansion(self) -> Expansion | None:
        """Return the expansion, if one is set.

        Raises:
            InvalidInput: it is unknown, or verl would give all of a session's attempts one score.
        """
        if self.expansion is None:
            return None
        kind = _EXPANSIONS.get(self.expansion.name)
        if kind is None:
            raise InvalidInput(
                f"trajgym.expansion: no {self.expansion.name!r}; there are {sorted(_EXPANSIONS)}",
            )
        if self.deriver is None or self.outputs == "main":
            raise InvalidInput(
                "trajgym.expansion needs outputs=all and trajgym.deriver: verl's own estimators "
                "give every attempt of a session the advantage of its last row",
            )
        try:
            return kind(**self.expansion.settings)
        except TypeError as error:
            raise InvalidInput(f"trajgym.expansion: {error}") from error


def read_settings(section: Mapping[str, Any], entry: Mapping[str, Any]) -> LoopSettings:
    """Return the settings of the run.

    Args:
        section: ``trajgym`` of verl's configuration.
        entry: keys of the agent loop's YAML entry.

    Raises:
        InvalidInput: a key that does not exist or does not fit, or one that is given twice.
    """
    if twice := sorted(set(section) & set(entry)):
        raise InvalidInput(
            f"{twice[0]!r} is set in the section trajgym and in the agent loop's YAML entry: "
            "remove one of them",
        )
    try:
        return LoopSettings(**section, **entry)
    except ValidationError as error:
        raise InvalidInput(f"section trajgym: {_first(error)}") from error


class Work(NamedTuple):
    """What a row of the data asks for."""

    task: Task
    env: EnvSpec
    budgets: Budgets | None

    @classmethod
    def read(cls, value: Any, settings: LoopSettings) -> Self:
        """Read the column ``trajgym`` of a row.

        Raises:
            InvalidInput: it is missing, not the JSON that :func:`column_value` writes, or the
                environment is given nowhere or twice.
        """
        where = f"column {COLUMN!r}"
        if not isinstance(value, str):
            raise InvalidInput(
                f"{where}: a JSON string was expected, not {type(value).__name__}: write the data "
                "with trajgym.adapters.verl.write_prompts",
            )
        try:
            row = _Row.model_validate_json(value)
        except ValidationError as error:
            raise InvalidInput(f"{where}: {_first(error)}") from error
        if (row.env is None) == (settings.env is None):
            raise InvalidInput(
                f"{where}: the environment is given "
                + ("nowhere" if row.env is None else "here and in the section trajgym")
                + ": give it once",
            )
        budgets = row.budgets or settings.budgets
        env = row.env or settings.env
        assert env is not None
        return cls(row.task, env, None if budgets is None else Budgets.from_json(budgets))


class _Row(BaseModel):
    model_config = _STRICT

    task: Task
    env: EnvSpec | None = None
    budgets: dict[str, Any] | None = None


def column_value(task: Task, env: EnvSpec | None, budgets: Budgets | None = None) -> str:
    """Return the column's value: one JSON string, which no columnar reader takes apart."""
    row: dict[str, Any] = {"task": task.model_dump(mode="json")}
    if env is not None:
        row["env"] = env.to_json()
    if budgets is not None:
        row["budgets"] = budgets.to_json()
    return json.dumps(row, sort_keys=True)


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "value"
    return f"{where}: {first['msg']}"

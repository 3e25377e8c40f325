"""Settings of sessions in verl, and the JSON column of the data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trajgym.adapters._group_rows import check_values
from trajgym.envs import Budgets, EnvSpec
from trajgym.rewards import Advantages, Rewards, as_deriver, get_deriver, probe_deriver
from trajgym.rollout import EntropyExpansion, RunSettings, SurprisalExpansion, TreeExpansion
from trajgym.trajectory import InvalidInput, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.rewards import Deriver
    from trajgym.rollout import Expansion

__all__ = [
    "COLUMN",
    "FeedSettings",
    "LoopSettings",
    "Named",
    "Work",
    "column_value",
    "read_settings",
]

COLUMN = "trajgym"
"""Name of the data's column and of the section in verl's configuration."""

_EXPANSIONS: dict[str, type[EntropyExpansion | SurprisalExpansion | TreeExpansion]] = {
    "entropy": EntropyExpansion,
    "surprisal": SurprisalExpansion,
    "tree": TreeExpansion,
}
_STRICT = ConfigDict(frozen=True, extra="forbid")


class Named(BaseModel):
    """A deriver or an expansion, by name.

    Attributes:
        name: of a deriver; or ``tree``, ``surprisal`` or ``entropy`` for an expansion.
        settings: its settings.
        weight: factor of a deriver in a sum of several.
        rewards: for an estimator, the derivers whose rewards it takes instead of its ``earn``.
    """

    model_config = _STRICT

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)
    weight: float = 1.0
    rewards: tuple[Named, ...] = ()


class FeedSettings(BaseModel):
    """A session server whose groups are trained instead of sessions of this process.

    Attributes:
        url: of the server; the token is that of ``TRAJGYM_TRAINER_TOKEN``.
        consumer: name of this training; its workers divide the groups among themselves.
        max_staleness: see :class:`trajgym.server.Feed`.
        stale: see :class:`trajgym.server.Feed`.
        seconds: longest time that a rollout waits for a session (s).
        deriver: advantages of whole groups, which become ``rm_scores``.
    """

    model_config = _STRICT

    url: str
    consumer: str = "trainer"
    max_staleness: int | None = Field(default=None, ge=0)
    stale: Literal["drop", "report"] = "drop"
    seconds: float = Field(default=3600.0, gt=0)
    deriver: Named | tuple[Named, ...] = Named(name="grpo")

    def group_deriver(self) -> Deriver:
        """Return the advantage deriver.

        Raises:
            InvalidInput: it is unknown, or returns rewards.
        """
        given = (self.deriver,) if isinstance(self.deriver, Named) else self.deriver
        deriver = as_deriver([one.model_dump(exclude_defaults=True) for one in given])
        check_values(probe_deriver(deriver), Advantages, "the section trajgym.feed")
        return deriver


class LoopSettings(BaseModel):
    """Section ``trajgym`` of verl's configuration, or the keys of an agent loop's YAML entry.

    Attributes:
        env: the environment, unless each row of the data has its own.
        budgets: of every session, instead of the environment's own; a row's budgets override them.
        rewards: derivers whose summed rewards become ``rm_scores``; each is run on one session.
        deriver: advantages of whole groups, used by the trainers ``trajgym_*``; several are added.
        annotators: annotate each session before its values are derived: ``module:function``, or
            ``{make: module:function, settings: {...}}``.
        missing_signals: sessions without the signals that a deriver reads return no row (``error``
            and ``drop``, which are the same in verl's loop), or are used nevertheless (``zero``).
        allow: kinds of sessions that are accepted nevertheless, see
            :class:`trajgym.adapters.Gate`.
        expansion: expands each session into a tree; needs ``deriver``.
        outputs: ``all`` rows of a session (V1), or the ``main`` row (V0, fully async).
        max_tokens: most response tokens of a turn.
        deadline: wall-clock time of an attempt (s).
        turn_timeout: seconds after which an engine that does not respond counts as unavailable.
        concurrency: most concurrent sessions in a worker process; None sets no bound.
        retries: number of retries of a failed session.
        seed: seeds of environments are derived from it and the task.
        feed: take sessions of outside agents from a session server; rollouts that are not trained
            (validation) are sampled as usual.
        store: directory in which every worker process records its sessions; None records nothing.
        trainer: set by the trainers ``trajgym_*``; not to be set by users.
    """

    model_config = _STRICT

    env: EnvSpec | None = None
    budgets: dict[str, Any] | None = None
    rewards: tuple[Named, ...] = (Named(name="outcome"),)
    deriver: Named | tuple[Named, ...] | None = None
    annotators: tuple[str | dict[str, Any], ...] = ()
    missing_signals: Literal["error", "drop", "zero"] = "error"
    allow: tuple[str, ...] = ()
    expansion: Named | None = None
    outputs: Literal["all", "main"] = "all"
    max_tokens: int = Field(default=4096, ge=1)
    deadline: float = Field(default=6 * 3600.0, gt=0)
    turn_timeout: float = Field(default=600.0, gt=0)
    concurrency: int | None = Field(default=None, ge=1)
    retries: int = Field(default=0, ge=0)
    seed: int = 0
    feed: FeedSettings | None = None
    store: str | None = None
    trainer: str = ""

    def reward_deriver(self) -> Deriver:
        """Return the sum of the reward derivers.

        Raises:
            InvalidInput: there is none, or one is unknown or compares the sessions of a group.
        """
        if not self.rewards:
            raise InvalidInput("trajgym.rewards is empty; leave it out to use the outcome's score")
        found = [get_deriver(one.name, **one.settings) for one in self.rewards]
        for deriver in found:
            if deriver.group_relative:
                raise InvalidInput(
                    f"trajgym.rewards: {deriver.name!r} compares the sessions of a group, but a "
                    "worker sees one session: use it as trajgym.deriver, with a trainer trajgym_*",
                )
        total = as_deriver([one.model_dump(exclude_defaults=True) for one in self.rewards])
        check_values(probe_deriver(total), Rewards, "the section trajgym.rewards")
        return total

    def group_deriver(self) -> Deriver | None:
        """Return the advantage deriver, or None if none is set.

        Raises:
            InvalidInput: it is unknown, returns rewards, or the trainer would not use it.
        """
        if not self.deriver:
            return None
        given = (self.deriver,) if isinstance(self.deriver, Named) else self.deriver
        deriver = as_deriver([one.model_dump(exclude_defaults=True) for one in given])
        check_values(probe_deriver(deriver), Advantages, "the section trajgym.deriver")
        if not self.trainer:
            raise InvalidInput(
                f"trajgym.deriver is {deriver.name!r}, but this trainer does not use it: set "
                "trainer.v1.trainer_mode to trajgym_sync, trajgym_colocate_async or "
                "trajgym_separate_async",
            )
        return deriver

    def run_settings(self, budgets: Budgets | None, step: int) -> RunSettings:
        """Return the settings of a session.

        Args:
            budgets: of the row.
            step: the trainer's step, recorded as a label.

        Raises:
            InvalidInput: see :meth:`session_expansion`.
        """
        return RunSettings(
            budgets=budgets,
            retries=self.retries,
            seed=self.seed,
            deadline=self.deadline,
            labels={"step": str(step)},
            expansion=self.session_expansion(),
        )

    def session_expansion(self) -> Expansion | None:
        """Return the expansion, or None if none is set.

        Raises:
            InvalidInput: it is unknown, or ``deriver`` or ``outputs`` don't fit.
        """
        if self.expansion is None:
            return None
        kind = _EXPANSIONS.get(self.expansion.name)
        if kind is None:
            raise InvalidInput(
                f"trajgym.expansion: unknown {self.expansion.name!r}; known: {sorted(_EXPANSIONS)}",
            )
        if self.deriver is None or self.outputs == "main":
            raise InvalidInput(
                "trajgym.expansion needs outputs=all and trajgym.deriver: with verl's own "
                "estimators, every attempt of a session has the advantage of its last row",
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
        InvalidInput: a key is unknown, invalid, or set in both.
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
    """The task of a row of the data, with environment and budgets."""

    task: Task
    env: EnvSpec
    budgets: Budgets | None

    @classmethod
    def read(cls, value: Any, settings: LoopSettings) -> Self:
        """Read the column ``trajgym`` of a row.

        Raises:
            InvalidInput: the column is missing or not JSON as written by :func:`column_value`, or
                the environment is set nowhere or twice.
        """
        where = f"column {COLUMN!r}"
        if not isinstance(value, str):
            raise InvalidInput(
                f"{where}: expected a JSON string, got {type(value).__name__}: write the data with "
                "trajgym.adapters.verl.write_prompts",
            )
        try:
            row = _Row.model_validate_json(value)
        except ValidationError as error:
            raise InvalidInput(f"{where}: {_first(error)}") from error
        if (row.env is None) == (settings.env is None):
            raise InvalidInput(
                f"{where}: the environment is set "
                + ("nowhere" if row.env is None else "here and in the section trajgym")
                + "; set it once",
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
    """Return the value of the column ``trajgym``: one JSON string."""
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

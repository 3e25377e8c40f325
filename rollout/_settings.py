"""The settings that all loops over sessions take."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self, TypedDict

from trajgym.envs import Budgets
from trajgym.rewards.filters import Filter
from trajgym.rollout._expansion import Expansion
from trajgym.rollout.rules import Admission, Enough, Outdated
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["RunKeywords", "RunSettings"]


class RunKeywords(TypedDict, total=False):
    """The fields of :class:`RunSettings` as keyword arguments, for type checkers."""

    samples: int
    concurrency: int
    budgets: Budgets | Mapping[str, Any] | None
    retries: int
    keep_failed: bool
    max_tries: int
    max_staleness: int | None
    admission: Admission | Mapping[str, Any] | None
    outdated: Outdated | Mapping[str, Any] | None
    enough: Enough | Mapping[str, Any] | None
    select: Filter | None
    seed: int
    deadline: float
    labels: Mapping[str, str]
    snapshot_every: int
    expansion: Expansion | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of a run; functions take them as ``settings=``, as keyword arguments, or both.

    ::

        settings = RunSettings(samples=8, budgets=Budgets(turns=20), retries=1)
        await collect(spec, tasks, policy, "runs/a", settings=settings)
        await collect(spec, tasks, policy, "runs/b", settings=settings, seed=1)
        await collect(spec, tasks, policy, "runs/c", samples=8)

    Args:
        samples: planned members of each group.
        concurrency: number of sessions that run at the same time.
        budgets: replace the environment's own; a mapping as returned by ``Budgets.to_json`` works
            too.
        retries: further tries of a sample whose session ended as ``failed``; the failed session
            stays in the group as a member that left.
        keep_failed: do not run failed samples of an earlier run again; by default they are, each
            with its ``retries``.
        max_tries: largest number of failed sessions of a sample over all runs, after which it is
            not run again; sessions that were cancelled or interrupted don't count.
        max_staleness: members whose oldest sampled token is more versions behind leave the group
            as ``stale`` when it is sealed, or later, when it is delivered; None keeps them.
        admission: how many groups may be begun ahead of the trainer; a mapping of the fields of
            :class:`Admission` works too. None begins a group whenever there is room.
        outdated: which running sessions are too old, and what becomes of them: an
            :class:`Outdated` or a mapping of its fields. None lets them continue.
        enough: when a group needs no further sessions: an :class:`Enough` or a mapping of its
            fields. None runs all samples.
        select: chooses the sessions of a group that count when it is sealed, such as
            ``DynamicSampling()`` or ``ResampleOnCorrect()`` of `trajgym.rewards.filters`; the
            others leave as ``filtered:<name>``.
        seed: all random choices derive from it: the environment's seed also from the task, so that
            it is the same for a whole group, and the sampling seed from session and turn.
        deadline: wall-clock seconds of one session, including waiting, after which it ends as
            ``failed:deadline``.
        labels: recorded with every session.
        snapshot_every: see :class:`trajgym.envs.Session`.
        expansion: forks each session whose first attempt was scored, and runs the rivals within
            the same ``concurrency``; their statuses don't count for ``retries``. A session whose
            tree was interrupted is run again from the start on resume.

    Raises:
        InvalidInput: a value has the wrong type or is out of range; from :meth:`of`, also an
            unknown name.
    """

    samples: int = 1
    concurrency: int = 8
    budgets: Budgets | None = None
    retries: int = 0
    keep_failed: bool = False
    max_tries: int = 10
    max_staleness: int | None = None
    admission: Admission | None = None
    outdated: Outdated | None = None
    enough: Enough | None = None
    select: Filter | None = None
    seed: int = 0
    deadline: float = 6 * 3600.0
    labels: Mapping[str, str] = field(default_factory=dict)
    snapshot_every: int = 0
    expansion: Expansion | None = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None and name == "max_staleness":
                continue
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise _wrong(name, value, "it must be an integer")
            if least is not None and value < least:
                raise _wrong(name, value, f"it must be at least {least}")
            object.__setattr__(self, name, int(value))
        if not isinstance(self.keep_failed, bool):
            raise _wrong("keep_failed", self.keep_failed, "it must be True or False")
        # Checked at run time too, because callers need not use a type checker.
        seconds, budgets, expansion, labels = self._unchecked()
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise _wrong("deadline", seconds, "it must be more than 0 seconds")
        if isinstance(budgets, Mapping):
            budgets = Budgets.from_json(dict(budgets))
            object.__setattr__(self, "budgets", budgets)
        if not isinstance(budgets, Budgets | None):
            raise _wrong("budgets", budgets, "it must be Budgets, a mapping of them, or None")
        for name, kind in _RULES.items():
            rule: Any = getattr(self, name)
            if isinstance(rule, Mapping):
                rule = kind(**_known(rule, kind, name))
                object.__setattr__(self, name, rule)
            if rule is not None and not isinstance(rule, kind):
                raise _wrong(name, rule, f"it must be {kind.__name__}, a mapping, or None")
        select: Any = self.select
        if select is not None and not isinstance(select, Filter):
            raise _wrong("select", select, "it must be a Filter of trajgym.rewards.filters or None")
        if not isinstance(expansion, Expansion | None):
            raise _wrong("expansion", expansion, "it must be an Expansion or None")
        if not isinstance(labels, Mapping) or not _strings([*labels, *labels.values()]):
            raise _wrong("labels", labels, "it must map strings to strings")
        object.__setattr__(self, "labels", dict(labels))

    def _unchecked(self) -> tuple[Any, Any, Any, Any]:
        return self.deadline, self.budgets, self.expansion, self.labels

    @classmethod
    def of(
        cls,
        settings: RunSettings | Mapping[str, Any] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return settings with some values replaced.

        Args:
            settings: the settings to start from, or a mapping; None starts from the defaults.
            overrides: values by name.

        Raises:
            InvalidInput: a name does not exist, or a value is invalid.
        """
        if settings is not None and not isinstance(settings, RunSettings | Mapping):
            raise InvalidInput(
                f"settings is {type(settings).__name__}; pass RunSettings, or a mapping of its "
                "fields",
            )
        given = {**(settings if isinstance(settings, Mapping) else {}), **(overrides or {})}
        known = [one.name for one in fields(cls)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise InvalidInput(f"unknown run setting {name!r}; {hint}the settings are {known}")
        if isinstance(settings, cls):
            return replace(settings, **given)
        return cls(**given)


_RULES: dict[str, type[Any]] = {"admission": Admission, "outdated": Outdated, "enough": Enough}
_LEAST = {
    "samples": 1,
    "concurrency": 1,
    "retries": 0,
    "max_tries": 1,
    "max_staleness": 0,
    "snapshot_every": 0,
    "seed": None,
}


def _wrong(name: str, value: object, rule: str) -> InvalidInput:
    return InvalidInput(f"run setting {name} is {value!r}; {rule}")


def _known(given: Mapping[str, Any], kind: type[Any], name: str) -> Mapping[str, Any]:
    known = {one.name for one in fields(kind)}
    if unknown := sorted(set(given) - known):
        raise InvalidInput(f"run setting {name} has no {unknown[0]!r}; it has {sorted(known)}")
    return given


def _strings(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)

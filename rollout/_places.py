"""The environments of a run, and how the sessions of each are run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trajgym.rollout._policy import AttemptPolicy
from trajgym.rollout.mixture._mixture import Mixture

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs import Env, EnvSpec
    from trajgym.rollout._policy import Policy
    from trajgym.rollout._settings import RunSettings
    from trajgym.trajectory import Task

__all__ = ["PART", "Place", "Places"]

PART = "part"
"""Label of the sessions of a mixture: the name of their part."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One environment of a run.

    Args:
        name: of the part; empty if the run has one environment.
        spec: the environment.
        env_class: its class.
        settings: how its sessions are run.
        limit: most sessions of it that run at the same time.
        tasks: its tasks, as far as they are known.
    """

    name: str
    spec: EnvSpec
    env_class: type[Env]
    settings: RunSettings
    limit: int | None = None
    tasks: Sequence[Task] = ()


class Places:
    """The environments of a run.

    Args:
        spec: one environment, or several.
        settings: of the run.
        tasks: of the one environment, as far as they are known.

    Raises:
        UnknownEnv: a spec names no environment.
        InvalidInput: an environment's rubric needs a judge and has none.
    """

    def __init__(
        self, spec: EnvSpec | Mixture, settings: RunSettings, tasks: Sequence[Task] = ()
    ) -> None:
        self.mixture = spec if isinstance(spec, Mixture) else None
        self.all: dict[str, Place] = {}
        if isinstance(spec, Mixture):
            for part in spec.parts:
                own = replace(
                    settings,
                    samples=part.samples or settings.samples,
                    budgets=part.budgets or settings.budgets,
                    labels={**settings.labels, PART: part.name},
                )
                env_class = part.spec.resolve()
                self.all[part.name] = Place(
                    part.name, part.spec, env_class, own, part.limit, part.tasks
                )
        else:
            self.all[""] = Place("", spec, spec.resolve(), settings, None, tasks)
        for place in self.all.values():
            rubric = place.env_class.rubric
            if rubric is not None and rubric.judged:
                place.spec.make()  # without a judge, every session would fail

    def of(self, task: Task) -> Place:
        """Return the place of a task.

        Raises:
            InvalidInput: it belongs to no part of the mixture.
        """
        name = "" if self.mixture is None else self.mixture.part_of(task).name
        return self.all[name]

    def check(self, policy: Policy) -> None:
        """Refuse a policy that can't run attempts in one of the environments.

        Raises:
            InvalidInput: it can't; see :meth:`AttemptPolicy.check`.
        """
        if isinstance(policy, AttemptPolicy):
            for place in self.all.values():
                policy.check(place.spec, place.settings)

    @property
    def cancel_seconds(self) -> float:
        """Seconds that code which belongs to no session has to clean up after a cancellation."""
        return max(place.env_class.cancel_seconds for place in self.all.values())

    @property
    def identity(self) -> Mapping[str, Any]:
        """The environment as JSON values, or those of the parts by name."""
        if self.mixture is None:
            return self.all[""].spec.to_json()
        return {name: place.spec.to_json() for name, place in self.all.items()}

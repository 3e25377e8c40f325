"""Combinations of derivers: a weighted sum, and an estimator over another deriver's rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import SerializeAsAny  # noqa: TC002 - pydantic reads it

from trajgym.rewards._deriver import Deriver, get_deriver
from trajgym.rewards._estimator import Estimator
from trajgym.rewards._values import Advantages, Rewards, add_stamps, scale_stamp
from trajgym.trajectory import InvalidInput, Stamp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.rewards._table import Scope, TurnTable
    from trajgym.trajectory import Group, SessionTree

__all__ = [
    "DeriverSpec",
    "Estimated",
    "WeightedSum",
    "as_deriver",
    "common_table",
    "widest_scope",
]

DeriverSpec: TypeAlias = "Deriver | str | Mapping[str, Any] | Sequence[Any]"
"""A deriver, a registered name, a mapping, or a sequence of these; see `as_deriver`."""


def widest_scope(derivers: Sequence[Deriver]) -> Scope:
    """Return what the values of these derivers depend on, taken together."""
    scopes: tuple[Scope, ...] = ("session", "group", "run")
    return max((one.scope for one in derivers), key=scopes.index, default="session")


def common_table(
    derivers: Sequence[Deriver], groups: Iterable[Group], sessions: Iterable[SessionTree]
) -> TurnTable:
    """Return the table of these sessions with all columns that the derivers read."""
    if len(derivers) == 1:
        return derivers[0].table(groups, sessions)
    from trajgym.rewards._table import TurnTable

    columns = [one.table([], []) for one in derivers]
    return TurnTable.build(
        groups,
        sessions,
        digests=any(one.digests is not None for one in columns),
        texts=any(one.texts is not None for one in columns),
        signals=sorted({name for one in columns for name in one.signal_names}),
    )


class _Several(Deriver):
    """A deriver that combines others; its table has the columns that all of them read."""

    @property
    def parts(self) -> tuple[Deriver, ...]:
        """The derivers that it combines."""
        raise NotImplementedError

    @property
    def scope(self) -> Scope:
        """The widest scope of the parts."""
        return widest_scope(self.parts)

    def table(self, groups: Iterable[Group], sessions: Iterable[SessionTree]) -> TurnTable:
        """Return the table of these sessions with all columns that the parts read."""
        return common_table(self.parts, groups, sessions)

    def missing(self, tree: SessionTree) -> str:
        """Return what a session lacks that one of the parts reads."""
        return next((lacks for part in self.parts if (lacks := part.missing(tree))), "")


class WeightedSum(_Several):
    """The weighted sum of derivers, all of rewards or all of advantages.

    Attributes:
        derivers: at least one.
        weights: one for each; 1 each if empty.
    """

    name = "weighted_sum"

    derivers: tuple[SerializeAsAny[Deriver], ...]
    weights: tuple[float, ...] = ()

    @property
    def parts(self) -> tuple[Deriver, ...]:
        """The summed derivers."""
        return self.derivers

    @property
    def stamp(self) -> Stamp:
        """The names, factors and settings of the terms."""
        weights = self.weights or (1.0,) * len(self.derivers)
        stamps = [
            one.stamp if weight == 1 else scale_stamp(weight, one.stamp)
            for one, weight in zip(self.derivers, weights, strict=True)
        ]
        return reduce(add_stamps, stamps)

    def derive(self, table: TurnTable) -> Rewards | Advantages:
        """Return the sum.

        Raises:
            InvalidInput: there are no derivers, the number of weights differs from that of the
                derivers, or rewards are mixed with advantages.
        """
        weights = self.weights or (1.0,) * len(self.derivers)
        if not self.derivers or len(weights) != len(self.derivers):
            raise InvalidInput(f"{len(self.derivers)} derivers with {len(weights)} weights")
        total: Any = None
        for deriver, weight in zip(self.derivers, weights, strict=True):
            values: Any = deriver.derive(table)
            if total is not None and type(values) is not type(total):
                raise InvalidInput(
                    f"deriver {deriver.name!r} gives {type(values).__name__.lower()}, and "
                    f"{self.derivers[0].name!r} gives {type(total).__name__.lower()}: they can't "
                    "be added; pass the rewards to an estimator: {'name': 'stepwise', 'rewards': "
                    "[...]}",
                )
            values = values if weight == 1 else weight * values
            total = values if total is None else total + values
        found: Rewards | Advantages = total
        return found


class Estimated(_Several):
    """An estimator's advantages from the rewards of another deriver.

    Attributes:
        estimator: computes advantages from rewards.
        rewards: gives rewards over turns.
    """

    name = "estimated"

    estimator: SerializeAsAny[Estimator]
    rewards: SerializeAsAny[Deriver]

    @property
    def parts(self) -> tuple[Deriver, ...]:
        """The estimator and the deriver of rewards."""
        return (self.estimator, self.rewards)

    @property
    def stamp(self) -> Stamp:
        """The estimator's name and settings, and the stamp of the rewards."""
        rewards = self.rewards.stamp._asdict()
        return Stamp(self.estimator.name, self.estimator.stamp.settings | {"rewards": rewards})

    def derive(self, table: TurnTable) -> Advantages:
        """Return the estimator's advantages.

        Raises:
            InvalidInput: ``rewards`` gives advantages, or values over spans.
        """
        rewards = self.rewards.derive(table)
        if not isinstance(rewards, Rewards):
            raise InvalidInput(
                f"estimator {self.estimator.name!r} takes rewards, and {self.rewards.name!r} gives "
                "advantages: add them instead",
            )
        return self.estimator.derive_from(rewards)


def as_deriver(given: DeriverSpec) -> Deriver:
    """Return the deriver that plain data from a configuration describes.

    Args:
        given: a `Deriver`; a registered name; a mapping ``{"name": ..., "settings": {...}}``, which
            with the key ``"rewards"`` (any of these) is the estimator of that name over those
            rewards; or a sequence of these, which are summed with the factors under ``"weight"``.

    Raises:
        UnknownDeriver: no deriver has that name.
        InvalidInput: ``given`` is none of these, or has a setting that the deriver lacks.
    """
    if isinstance(given, Deriver):
        return given
    if isinstance(given, str):
        return get_deriver(given)
    if isinstance(given, Mapping):
        return _from_mapping(given)
    if not isinstance(given, Sequence) or not given:
        raise InvalidInput(f"{given!r:.100} is not a deriver: give a name, a mapping, or a list")
    if len(given) == 1 and not (isinstance(given[0], Mapping) and "weight" in given[0]):
        return as_deriver(given[0])
    weights = [one.get("weight", 1.0) if isinstance(one, Mapping) else 1.0 for one in given]
    derivers = [
        as_deriver({k: v for k, v in one.items() if k != "weight"})
        if isinstance(one, Mapping)
        else as_deriver(one)
        for one in given
    ]
    return WeightedSum(derivers=tuple(derivers), weights=tuple(map(float, weights)))


def _from_mapping(given: Mapping[str, Any]) -> Deriver:
    if unknown := sorted(set(given) - {"name", "settings", "rewards", "weight"}):
        raise InvalidInput(
            f"a deriver has no key {unknown[0]!r}; its keys are name, settings, rewards and weight",
        )
    if "name" not in given:
        raise InvalidInput(f"{dict(given)!r:.100} names no deriver: give its name")
    if "weight" in given:
        return as_deriver([given])
    deriver = get_deriver(given["name"], **(given.get("settings") or {}))
    if "rewards" not in given:
        return deriver
    if not isinstance(deriver, Estimator):
        raise InvalidInput(
            f"deriver {deriver.name!r} does not take rewards of other derivers; estimators such as "
            "'stepwise' and 'return_to_go' do",
        )
    return Estimated(estimator=deriver, rewards=as_deriver(given["rewards"]))

"""From a sealed group to samples, with an account of everything on the way."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trajgym.adapters._groups import group_rows
from trajgym.adapters._trl_samples import session_samples
from trajgym.trajectory import UnsupportedModality

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.adapters._groups import GroupRows
    from trajgym.adapters._trl_samples import Form
    from trajgym.rewards import Deriver
    from trajgym.rollout import SealedGroup
    from trajgym.trajectory import SessionTree

__all__ = ["Harvest", "Harvester", "Tally"]


@dataclass(slots=True)
class Tally:
    """What became of the sessions of all sealed groups.

    Args:
        groups: groups sealed.
        barren: groups in a row, up to now, that gave no sample.
        sessions: members that counted; each is in ``trained`` or in ``dropped``.
        left: members that left their group, by reason.
        dropped: counted members without rows, by reason.
        trained: counted members with rows.
        rows: training rows.
        samples: samples made of them.
    """

    groups: int = 0
    barren: int = 0
    sessions: int = 0
    left: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    trained: int = 0
    rows: int = 0
    samples: int = 0

    @classmethod
    def of(cls, tallies: Sequence[Tally]) -> Tally:
        """Return the tally of several workers together."""
        return cls(
            groups=sum(one.groups for one in tallies),
            # As long as one of them gives samples, there are some.
            barren=min((one.barren for one in tallies), default=0),
            sessions=sum(one.sessions for one in tallies),
            left=sum((one.left for one in tallies), Counter()),
            dropped=sum((one.dropped for one in tallies), Counter()),
            trained=sum(one.trained for one in tallies),
            rows=sum(one.rows for one in tallies),
            samples=sum(one.samples for one in tallies),
        )


class Harvest(NamedTuple):
    """What one group gave: pairs of session and sample, and metrics in TRL's form."""

    samples: list[tuple[str, Any]]
    metrics: dict[str, Any]


class Harvester:
    """Derives a sealed group's advantages and makes samples of its rows.

    Args:
        deriver: gives advantages.
        form: how rows become samples.
        skip_flat: leave out groups all of whose advantages are 0.
    """

    def __init__(self, deriver: Deriver, form: Form, *, skip_flat: bool) -> None:
        self.tally = Tally()
        self._deriver = deriver
        self._form = form
        self._skip_flat = skip_flat

    def __call__(self, sealed: SealedGroup) -> Harvest:
        """Return what a group gave. Blocks for the computation.

        A session whose rows are refused is dropped whole and named in :attr:`tally`.

        Raises:
            InvalidInput: the deriver gives no advantages.
            UnsupportedModality: the sessions show images, which TRL's asynchronous trainer can't
                train on.
        """
        # A new one each time: who reads the last one, or sends it, sees it whole.
        tally = deepcopy(self.tally)
        tally.groups += 1
        tally.sessions += len(sealed.sessions)
        found = self._rows(sealed)
        tally.left += found.left
        tally.dropped += found.dropped
        samples: list[tuple[str, Any]] = []
        rows_of = found.sessions
        if found.flat and self._skip_flat:
            tally.dropped["flat group"] += len(rows_of)
            rows_of = []
        for tree, rows in rows_of:
            made = session_samples(tree, rows, form=self._form)
            samples += [(tree.record.id, sample) for sample in made]
            tally.rows += len(rows)
            tally.trained += 1
        tally.samples += len(samples)
        tally.barren = 0 if samples else tally.barren + 1
        self.tally = tally
        return Harvest(
            samples, _metrics(sealed.sessions, found.left, len(samples), flat=found.flat)
        )

    def _rows(self, sealed: SealedGroup) -> GroupRows:
        try:
            return group_rows(sealed, self._deriver, advantages=True)
        except UnsupportedModality as error:
            raise UnsupportedModality(
                f"{error} (with TRL, images go through the environment_factory of GRPOSpec)",
            ) from error


def _metrics(
    sessions: Sequence[SessionTree], left: Counter[str], samples: int, *, flat: bool
) -> dict[str, Any]:
    """Return gauges as numbers, rates as (sum, count); a ``total`` in the name is added up."""
    metrics: dict[str, Any] = {
        "trajgym/groups_total": 1.0,
        "trajgym/flat_groups_total": float(flat),
    }
    metrics["trajgym/left_total"] = float(left.total())
    for reason, count in left.items():
        metrics[f"trajgym/left/{reason}_total"] = float(count)
    if not sessions:
        return metrics
    n = float(len(sessions))
    scores = np.array([a.outcome.score for t in sessions for a in t.attempts if a.outcome])
    cut = sum(tree.attempts[0].status.kind == "truncated" for tree in sessions)
    tokens = [t.tokens.response_ids.size for tree in sessions for t in tree.turns if t.tokens]
    return metrics | {
        "reward": (float(scores.sum()), float(scores.size)),
        "reward_std": float(scores.std()) if scores.size else 0.0,
        "trajgym/sessions_total": n,
        "trajgym/truncated": (float(cut), n),
        "rollout/turns_mean": (float(sum(len(tree.turns) for tree in sessions)), n),
        "rollout/samples_per_rollout": (float(samples), n),
        "completions/mean_length": (float(sum(tokens)), n),
    }

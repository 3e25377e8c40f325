"""From a sealed group to samples, with counts of everything that was left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trajgym.adapters._group_rows import RowBuilder
from trajgym.adapters.trl._samples import session_samples
from trajgym.rewards import Advantages
from trajgym.trajectory import UnsupportedModality

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trajgym.adapters._group_rows import GroupRows, MissingRule
    from trajgym.adapters.trl._samples import Form
    from trajgym.rewards import DeriverSpec
    from trajgym.rollout import SealedGroup
    from trajgym.trajectory import SessionTree

__all__ = ["GroupSamples", "SampleBuilder", "Tally"]


@dataclass(slots=True)
class Tally:
    """Counts over the sessions of all sealed groups.

    Args:
        groups: sealed groups.
        barren: consecutive groups without a sample, up to now.
        sessions: members that did not leave; each is counted in ``trained`` or in ``dropped``.
        left: members that left their group, by reason.
        dropped: other members without rows, by reason.
        lacking: members that were used although they lack a signal, by signal.
        trained: members with rows.
        rows: training rows.
        samples: samples made from the rows.
    """

    groups: int = 0
    barren: int = 0
    sessions: int = 0
    left: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    lacking: Counter[str] = field(default_factory=Counter)
    trained: int = 0
    rows: int = 0
    samples: int = 0

    def plus(self, more: Tally) -> Tally:
        """Return the counts with those of further groups."""
        return Tally(
            groups=self.groups + more.groups,
            barren=more.barren if more.samples else self.barren + more.barren,
            sessions=self.sessions + more.sessions,
            left=self.left + more.left,
            dropped=self.dropped + more.dropped,
            lacking=self.lacking + more.lacking,
            trained=self.trained + more.trained,
            rows=self.rows + more.rows,
            samples=self.samples + more.samples,
        )


class GroupSamples(NamedTuple):
    """The result of one group: pairs of session and sample, metrics in TRL's form, and counts."""

    samples: list[tuple[str, Any]]
    metrics: dict[str, Any]
    tally: Tally


class SampleBuilder:
    """Derives a sealed group's advantages and makes samples from its rows.

    Args:
        deriver: returns advantages.
        form: how rows are split into samples.
        skip_flat: leave out groups all of whose advantages are 0.
        allow: see :class:`trajgym.adapters.Gate`.
        temperature: the trainer's.
        missing_signals: see :data:`trajgym.adapters.MissingRule`.
        longest: most ids of a sample; sessions with a longer one are left out, since TRL would
            drop only that sample. None sets no bound.

    Raises:
        InvalidInput: the deriver returns rewards, or refuses its settings.
    """

    def __init__(
        self,
        deriver: DeriverSpec,
        form: Form,
        *,
        skip_flat: bool = False,
        allow: Collection[str] = (),
        temperature: float | None = None,
        missing_signals: MissingRule = "error",
        longest: int | None = None,
    ) -> None:
        self._longest = longest
        self.tally = Tally()
        self._build = RowBuilder(
            deriver,
            "TRL's asynchronous trainer",
            kind=Advantages,
            allow=allow,
            temperature=temperature,
            missing_signals=missing_signals,
        )
        self._form = form
        self._skip_flat = skip_flat

    def __call__(self, sealed: SealedGroup) -> GroupSamples:
        """Return a group's samples. Blocks while it computes.

        A session whose rows are refused is dropped as a whole and counted in :attr:`tally`.

        Raises:
            MissingSignals: sessions lack signals that the deriver reads.
            UnsupportedModality: the sessions contain images, which TRL's asynchronous trainer can't
                train on.
        """
        tally = Tally(groups=1, sessions=len(sealed.sessions))
        found = self._rows(sealed)
        tally.left += found.left
        tally.dropped += found.dropped
        tally.lacking += found.lacking
        samples: list[tuple[str, Any]] = []
        rows_of = found.sessions
        if found.flat and self._skip_flat:
            tally.dropped["flat group"] += len(rows_of)
            rows_of = []
        for tree, rows in rows_of:
            made = session_samples(tree, rows, form=self._form)
            if self._longest and max(one.input_ids.size for one in made) > self._longest:
                tally.dropped[f"a sample is longer than token_budget={self._longest}"] += 1
                continue
            samples += [(tree.record.id, sample) for sample in made]
            tally.rows += len(rows)
            tally.trained += 1
        tally.samples += len(samples)
        tally.barren = 0 if samples else 1
        # Replaced, never changed in place: other threads read it without a lock.
        self.tally = self.tally.plus(tally)
        metrics = _metrics(sealed.sessions, found.left, len(samples), flat=found.flat)
        return GroupSamples(samples, metrics, tally)

    def _rows(self, sealed: SealedGroup) -> GroupRows:
        try:
            return self._build(sealed)
        except UnsupportedModality as error:
            raise UnsupportedModality(
                f"{error} (with TRL, use the environment_factory of GRPORollouts for images)",
            ) from error


def _metrics(
    sessions: Sequence[SessionTree], left: Counter[str], samples: int, *, flat: bool
) -> dict[str, Any]:
    """Return gauges as numbers and means as (sum, count); TRL sums names with ``total``."""
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
    turns = sum(not turn.simulated for tree in sessions for turn in tree.turns)
    tokens = [t.tokens.response_ids.size for tree in sessions for t in tree.turns if t.tokens]
    return metrics | {
        "reward": (float(scores.sum()), float(scores.size)),
        "reward_std": float(scores.std()) if scores.size else 0.0,
        "trajgym/sessions_total": n,
        "trajgym/truncated": (float(cut), n),
        "rollout/turns_mean": (float(turns), n),
        "rollout/samples_per_rollout": (float(samples), n),
        "completions/mean_length": (float(sum(tokens)), n),
    }

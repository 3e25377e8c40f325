"""Counting a run for its plots, as a whole or a piece at a time."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from trajgym.rollout.plots._plots import PLOTS
from trajgym.rollout.plots._tally import Tally, Values
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.rewards import Advantages, Rewards, RunValues
    from trajgym.rollout.plots._data import Plot
    from trajgym.trajectory import Run

__all__ = ["PlotCount", "plot_data"]


class PlotCount:
    """The plots of a run, from the sessions that have been counted so far.

    One session is in memory at a time. Beside counts, a few bytes per session, group, task and
    failed attempt are held. Turns of sub-agents, simulated users and side calls do not count, their
    tool calls do.

    Args:
        run: open; it may be in progress.
        values: rewards and advantages to show beside those that are stored in the run.
        stored: whether those that ``trajgym reward`` stored are shown.

    Raises:
        StoreCorrupt: the run is damaged; also raised by :meth:`advance`.
    """

    def __init__(
        self,
        run: Run,
        *,
        values: Sequence[Rewards | Advantages | RunValues] = (),
        stored: bool = True,
    ) -> None:
        self._run, self._values, self._stored = run, values, stored
        self._left = {m.session for group in run.groups() for m in group.members if m.left}
        self._sessions = run.sessions()
        self._tally = Tally()

    @property
    def sessions(self) -> int:
        """Number of sessions that have been counted."""
        return self._tally.sessions

    def advance(self, seconds: float | None = None) -> bool:
        """Count further sessions, for about so long; return whether all have been counted."""
        end = None if seconds is None else time.monotonic() + seconds
        for tree in self._sessions:
            name = tree.record.id
            found = _stored(self._run.derived(name)) if self._stored else {}
            for one in self._values:
                with suppress(InvalidInput):  # the session is in no sealed group
                    turns = one.session(name).turns.tolist()
                    found[one.stamp.deriver] = Values(one.kind.__name__.lower(), turns)
            self._tally.add(tree, found, left=name in self._left)
            if end is not None and time.monotonic() > end:
                return False
        return True

    def plots(self) -> list[Plot]:
        """Return the data of all plots."""
        return [make(self._tally) for make in PLOTS.values()]


def plot_data(
    run: Run, *, values: Sequence[Rewards | Advantages | RunValues] = (), stored: bool = True
) -> list[Plot]:
    """Return the data of all plots of a run; see `PlotCount` for the arguments."""
    count = PlotCount(run, values=values, stored=stored)
    count.advance()
    return count.plots()


def _stored(bodies: Mapping[str, bytes]) -> dict[str, Values]:
    found = {}
    for name, body in bodies.items():
        stored = json.loads(body)
        if stored.get("values"):
            found[name] = Values(stored.get("kind", "rewards"), stored["values"])
    return found

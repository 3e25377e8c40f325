"""The state that earlier runs left in a store: which samples are finished."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trajgym.rollout.rules import SURPLUS
from trajgym.trajectory import Member, StoreLocked
from trajgym.trajectory._internal import has_writer

if TYPE_CHECKING:
    from collections.abc import Collection

    from trajgym.rollout._settings import RunSettings
    from trajgym.trajectory import Group, Run, SessionSummary, Status, Store

__all__ = [
    "EXPANSION",
    "Earlier",
    "earlier_groups",
    "is_finished",
    "left_reason",
    "with_sessions",
    "without_writers",
]

EXPANSION = "expansion"
"""Label of a session that is to be grown into a tree.

The attempts alone do not show whether all planned rivals have been opened: the tree is complete
once the group's record lists the session as a member.
"""
_CUT = "interrupted"
"""Reason for which a session with an incomplete tree left its group."""


@dataclass(slots=True)
class Earlier:
    """What the store has of one group.

    Args:
        members: all its sessions, including those that left.
        finished: session ids of samples that need not be run again, by sample.
        failed: the last failed session of each sample without a finished one.
        tries: number of sessions that each sample has had.
        failures: how many of them failed; those that were cut, by a killed process, say, did not.
        sealed: whether the group was sealed.
        scores: score of each finished sample that has one.
    """

    members: list[Member] = field(default_factory=list)
    finished: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    sealed: bool = False
    scores: dict[int, float] = field(default_factory=dict)

    def lacking(self, settings: RunSettings) -> set[int]:
        """Return the samples that are still to be run; none if the group has enough sessions."""
        missing = set(range(settings.samples)) - set(self.finished)
        enough = settings.enough
        if enough is not None and enough.kept(self.scores, missing) is not None:
            return set()
        return missing


def earlier_groups(
    store: Store, *, keep_failed: bool = False, max_tries: int = 10
) -> dict[str, Earlier]:
    """Return what the store has of each group, by id. Blocks while it reads.

    Args:
        store: the run's store.
        keep_failed: count failed samples as finished.
        max_tries: count a failed sample as finished after this many failed sessions.
    """
    with store.read_run() as run:
        return with_sessions({}, run, keep_failed=keep_failed, max_tries=max_tries)


async def without_writers(store: Store, seconds: float) -> None:
    """Wait until no other process writes a file of the run.

    The processes of a fleet whose parent was killed take a moment to close their sessions.

    Raises:
        StoreLocked: one still does after ``seconds``.
    """
    until = time.monotonic() + seconds
    while True:
        with store.read_run() as run:
            busy = [path for path in run.files if path != store.path and has_writer(path)]
        if not busy:
            return
        if time.monotonic() > until:
            raise StoreLocked(f"{busy[0]}: another process writes this file of the run")
        await asyncio.sleep(0.05)


def with_sessions(
    groups: dict[str, Earlier],
    run: Run,
    *,
    only: Collection[str] | None = None,
    keep_failed: bool = False,
    max_tries: int = 10,
) -> dict[str, Earlier]:
    """Add what a run, or a file of it, has to what is known of its groups; return that.

    Args:
        groups: what is known, by id; changed.
        run: the run or file.
        only: ids of the groups to read; None for all.
        keep_failed: count failed samples as finished.
        max_tries: count a failed sample as finished after this many failed sessions.
    """
    kept = {group.id: group for group in run.groups()}
    known = {member.session for earlier in groups.values() for member in earlier.members}
    for summary in run.summaries():
        name = summary.record.group
        if name is None or summary.record.id in known or (only is not None and name not in only):
            continue
        group = kept.get(name)
        earlier = groups.setdefault(name, Earlier())
        earlier.sealed = group is not None and group.sealed
        _add(earlier, summary, group)
    for earlier in groups.values():
        for sample, session in earlier.failed.items():
            if keep_failed or earlier.failures[sample] >= max_tries:
                earlier.finished.setdefault(sample, session)
    return groups


def _add(earlier: Earlier, summary: SessionSummary, group: Group | None) -> None:
    record, status = summary.record, summary.attempts[0].status
    whole = _is_whole(summary, group)
    left = left_reason(status) if whole else _CUT
    listed = [] if group is None else group.members
    if any(one.session == record.id and one.left == SURPLUS for one in listed):
        left = SURPLUS
    earlier.members.append(Member(record.id, record.sample, left))
    earlier.tries[record.sample] = earlier.tries.get(record.sample, 0) + 1
    if whole and status.scored:
        earlier.finished[record.sample] = record.id
        earlier.failed.pop(record.sample, None)
        outcome = summary.attempts[0].outcome
        if outcome is not None:
            earlier.scores[record.sample] = outcome.score
    elif whole and status.kind == "failed":
        earlier.failed[record.sample] = record.id
        earlier.failures[record.sample] = earlier.failures.get(record.sample, 0) + 1


def _is_whole(summary: SessionSummary, group: Group | None) -> bool:
    record = summary.record
    if EXPANSION not in record.labels or not summary.attempts[0].status.scored:
        return True
    listed = group.members if group is not None else []
    return any(member.session == record.id and member.left != _CUT for member in listed)


def is_finished(status: Status) -> bool:
    """Return whether a sample that ended this way is finished, so that its group can be sealed."""
    return status.scored or status.kind == "failed"


def left_reason(status: Status) -> str:
    """Return why a session that ended this way leaves its group; empty if it counts."""
    return "" if status.scored else str(status)

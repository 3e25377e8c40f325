"""The state that earlier runs left in a store: which samples are finished."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trajgym.trajectory import Member

if TYPE_CHECKING:
    from trajgym.trajectory import Group, SessionSummary, Status, Store

__all__ = ["EXPANSION", "Earlier", "earlier_groups", "is_finished", "left_reason"]

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
        sealed: whether the group was sealed.
    """

    members: list[Member] = field(default_factory=list)
    finished: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    sealed: bool = False


def earlier_groups(
    store: Store, *, keep_failed: bool = False, max_tries: int = 10
) -> dict[str, Earlier]:
    """Return what the store has of each group, by id. Blocks while it reads.

    Args:
        store: the run's store.
        keep_failed: count failed samples as finished.
        max_tries: count a failed sample as finished after this many sessions.
    """
    groups: dict[str, Earlier] = {}
    with store.read() as run:
        kept = {group.id: group for group in run.groups()}
        for summary in run.summaries():
            name = summary.record.group
            if name is None:
                continue
            group = kept.get(name)
            earlier = groups.setdefault(name, Earlier())
            earlier.sealed = group is not None and group.sealed
            _add(earlier, summary, group)
    for earlier in groups.values():
        for sample, session in earlier.failed.items():
            if keep_failed or earlier.tries[sample] >= max_tries:
                earlier.finished.setdefault(sample, session)
    return groups


def _add(earlier: Earlier, summary: SessionSummary, group: Group | None) -> None:
    record, status = summary.record, summary.attempts[0].status
    whole = _is_whole(summary, group)
    left = left_reason(status) if whole else _CUT
    earlier.members.append(Member(record.id, record.sample, left))
    earlier.tries[record.sample] = earlier.tries.get(record.sample, 0) + 1
    if whole and status.scored:
        earlier.finished[record.sample] = record.id
        earlier.failed.pop(record.sample, None)
    elif whole and status.kind == "failed":
        earlier.failed[record.sample] = record.id


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

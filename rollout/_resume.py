"""What earlier runs of a store left: which samples are finished, which must be run again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trajgym.trajectory import Member

if TYPE_CHECKING:
    from trajgym.trajectory import Group, SessionSummary, Status, Store

__all__ = ["EXPANSION", "Earlier", "earlier_groups", "is_finished", "left_reason"]

EXPANSION = "expansion"
"""Label of a session that is to be grown into a tree.

Nothing in its attempts tells whether all rivals that were planned have been opened: the tree is
whole once the session stands among the members that its group's record lists.
"""
_CUT = "interrupted"
"""Why a session whose tree is not whole left its group."""


@dataclass(slots=True)
class Earlier:
    """What the store holds of one group.

    Args:
        members: every session of it, those that left included.
        finished: session ids of samples that need not be run again, by sample.
        tries: how many sessions each sample has had.
        sealed: the group was sealed.
    """

    members: list[Member] = field(default_factory=list)
    finished: dict[int, str] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    sealed: bool = False


def earlier_groups(store: Store) -> dict[str, Earlier]:
    """Return what the store holds, by group id. Blocks while it reads."""
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
    return groups


def _add(earlier: Earlier, summary: SessionSummary, group: Group | None) -> None:
    record, status = summary.record, summary.attempts[0].status
    whole = _is_whole(summary, group)
    left = left_reason(status) if whole else _CUT
    earlier.members.append(Member(record.id, record.sample, left))
    earlier.tries[record.sample] = earlier.tries.get(record.sample, 0) + 1
    if whole and is_finished(status):
        earlier.finished[record.sample] = record.id


def _is_whole(summary: SessionSummary, group: Group | None) -> bool:
    record = summary.record
    if EXPANSION not in record.labels or not summary.attempts[0].status.scored:
        return True
    listed = group.members if group is not None else []
    return any(member.session == record.id and member.left != _CUT for member in listed)


def is_finished(status: Status) -> bool:
    """Return whether a sample with this ending is not run again on resume."""
    return status.scored or status.kind == "failed"


def left_reason(status: Status) -> str:
    """Return why a session with this ending does not count in its group; empty if it does."""
    return "" if status.scored else str(status)

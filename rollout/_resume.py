"""What earlier runs of a store left: which samples are finished, which must be run again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trajgym.trajectory import Member

if TYPE_CHECKING:
    from trajgym.trajectory import SessionSummary, Status, Store

__all__ = ["Earlier", "earlier_groups", "is_finished", "left_reason"]


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
        for summary in run.summaries():
            record = summary.record
            if record.group is None:
                continue
            earlier = groups.setdefault(record.group, Earlier())
            _add(earlier, summary)
        for group in run.groups():
            if group.id in groups:
                groups[group.id].sealed = group.sealed
    return groups


def _add(earlier: Earlier, summary: SessionSummary) -> None:
    record, status = summary.record, summary.attempts[0].status
    earlier.members.append(Member(record.id, record.sample, left_reason(status)))
    earlier.tries[record.sample] = earlier.tries.get(record.sample, 0) + 1
    if is_finished(status):
        earlier.finished[record.sample] = record.id


def is_finished(status: Status) -> bool:
    """Return whether a sample with this ending is not run again on resume."""
    return status.scored or status.kind == "failed"


def left_reason(status: Status) -> str:
    """Return why a session with this ending does not count in its group; empty if it does."""
    return "" if status.scored else str(status)

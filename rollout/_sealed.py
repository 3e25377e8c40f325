"""Sealed groups, and the members that leave one: those a filter rejects and those too old."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from trajgym.rewards import TurnTable
from trajgym.rollout._sample import oldest_version
from trajgym.trajectory._internal import group_html

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trajgym.rewards.filters import Filter
    from trajgym.trajectory import Group, Member, SessionTree

__all__ = ["SealedGroup", "as_delivered", "without_rejected", "without_stale"]


class SealedGroup(NamedTuple):
    """A group whose members will not change any more."""

    group: Group
    sessions: list[SessionTree]
    """Sessions of the members that count, in the order of their samples."""

    def __repr__(self) -> str:
        scores = [f"{a.outcome.score:g}" for t in self.sessions for a in t.attempts if a.outcome]
        return (
            f"<SealedGroup {self.group.id}: task {self.group.task}, {len(self.sessions)} of "
            f"{self.group.planned} sessions, scores {', '.join(scores) or 'none'}>"
        )

    def _repr_html_(self) -> str:
        return group_html(self.group, self.sessions)


def without_rejected(
    select: Filter, group: Group, trees: Mapping[int, SessionTree]
) -> list[Member]:
    """Return a group's members; those that a filter does not choose have left.

    Args:
        select: the filter.
        group: the group, which need not be sealed.
        trees: sessions by sample; those of members that have left are ignored.
    """
    counted = {member.session for member in group.counted}
    chosen = [tree for tree in trees.values() if tree.record.id in counted]
    table = TurnTable.build([replace(group, sealed=True)], chosen)
    kept = set(select.select(table).sessions)
    left = f"filtered:{select.name}"
    return [
        member._replace(left=left) if not member.left and member.session not in kept else member
        for member in group.members
    ]


def without_stale(
    members: Sequence[Member], trees: Iterable[SessionTree], version: int, most: int | None
) -> list[Member]:
    """Return a group's members; those with a token that is too old have left as ``stale``.

    Args:
        members: the members.
        trees: sessions of those that count.
        version: the trainer's policy version.
        most: versions that a session's oldest sampled token may be behind; None for any number.
    """
    if most is None:
        return list(members)
    oldest = {tree.record.id: oldest_version(tree) for tree in trees}

    def left(member: Member) -> str:
        low = oldest.get(member.session)
        is_stale = not member.left and low is not None and version - low > most
        return "stale" if is_stale else member.left

    return [member._replace(left=left(member)) for member in members]


def as_delivered(sealed: SealedGroup, version: int, most: int | None) -> SealedGroup:
    """Return a sealed group as a trainer at a version gets it; the same group if none left."""
    members = without_stale(sealed.group.members, sealed.sessions, version, most)
    if members == sealed.group.members:
        return sealed
    group = replace(sealed.group, members=members)
    counted = {member.session for member in group.counted}
    trees = [tree for tree in sealed.sessions if tree.record.id in counted]
    return SealedGroup(group, trees)

"""From a sealed group to rows with values, with an account of what has none."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from trajgym.rewards import TurnTable, apply
from trajgym.trajectory import InvalidInput, UnsupportedModality, build_rows, validate_row

if TYPE_CHECKING:
    from trajgym.rewards import Deriver
    from trajgym.rollout import SealedGroup
    from trajgym.trajectory import SessionTree, TrainingRow

__all__ = ["GroupRows", "group_rows"]


class GroupRows(NamedTuple):
    """Sessions with their rows, and by reason how many members have none."""

    sessions: list[tuple[SessionTree, list[TrainingRow]]]
    left: Counter[str]

    @property
    def rows(self) -> list[TrainingRow]:
        """The rows of all sessions."""
        return [row for _, rows in self.sessions for row in rows]

    @property
    def flat(self) -> bool:
        """True if nothing can be learned: every advantage, or else every reward, is 0."""
        arrays = [r.reward if r.advantage is None else r.advantage for r in self.rows]
        return not any(array is not None and array.any() for array in arrays)


def group_rows(sealed: SealedGroup, deriver: Deriver) -> GroupRows:
    """Derive a group's values and return its rows. Blocks for the computation.

    A session whose rows are refused is left out whole.

    Raises:
        UnsupportedModality: the sessions show images, which have no rows.
    """
    left = Counter(member.left for member in sealed.group.members if member.left)
    found: list[tuple[SessionTree, list[TrainingRow]]] = []
    if not sealed.sessions:
        return GroupRows(found, left)
    digests = deriver.needs_digests
    values = deriver.derive(TurnTable.build([sealed.group], sealed.sessions, digests=digests))
    for tree in sealed.sessions:
        try:
            rows, dropped = build_rows(tree)
            rows = apply(rows, values)
            for row in rows:
                validate_row(row)
        except UnsupportedModality:
            raise
        except InvalidInput as error:
            left[str(error)] += 1
            continue
        if rows:
            found.append((tree, rows))
        else:
            left[dropped[0].reason if dropped else "no sampled token"] += 1
    return GroupRows(found, left)

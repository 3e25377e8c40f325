"""From a sealed group to rows with values, with an account of what has none."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from trajgym.rewards import Advantages, TurnTable, apply
from trajgym.trajectory import InvalidInput, UnsupportedModality, build_rows, validate_row

if TYPE_CHECKING:
    from trajgym.rewards import Deriver
    from trajgym.rollout import SealedGroup
    from trajgym.trajectory import SessionTree, TrainingRow

__all__ = ["GroupRows", "group_rows"]


class GroupRows(NamedTuple):
    """Sessions with their rows, and by reason how many members have none.

    Args:
        sessions: those that have rows.
        left: members that left the group.
        dropped: counted members without rows.
    """

    sessions: list[tuple[SessionTree, list[TrainingRow]]]
    left: Counter[str]
    dropped: Counter[str]

    @property
    def rows(self) -> list[TrainingRow]:
        """The rows of all sessions."""
        return [row for _, rows in self.sessions for row in rows]

    @property
    def flat(self) -> bool:
        """True if nothing can be learned: every advantage, or else every reward, is 0."""
        arrays = [r.reward if r.advantage is None else r.advantage for r in self.rows]
        return not any(array is not None and array.any() for array in arrays)


def group_rows(sealed: SealedGroup, deriver: Deriver, *, advantages: bool = False) -> GroupRows:
    """Derive a group's values and return its rows. Blocks for the computation.

    A session whose rows are refused is dropped whole.

    Args:
        sealed: the group.
        deriver: gives its values.
        advantages: nothing else will do.

    Raises:
        InvalidInput: advantages are needed, and the deriver gives rewards.
        UnsupportedModality: the sessions show images, which have no rows.
    """
    left = Counter(member.left for member in sealed.group.members if member.left)
    made = GroupRows([], left, Counter())
    if not sealed.sessions:
        return made
    digests = deriver.needs_digests
    values = deriver.derive(TurnTable.build([sealed.group], sealed.sessions, digests=digests))
    if advantages and not isinstance(values, Advantages):
        raise InvalidInput(
            f"deriver {deriver.name!r} gives rewards; the trainer needs advantages: turn them into "
            "advantages first, or use a deriver such as GRPO()",
        )
    for tree in sealed.sessions:
        try:
            rows, dropped = build_rows(tree)
            rows = apply(rows, values)
            for row in rows:
                validate_row(row)
        except UnsupportedModality:
            raise
        except InvalidInput as error:
            made.dropped[str(error)] += 1
            continue
        if rows:
            made.sessions.append((tree, rows))
        else:
            made.dropped[dropped[0].reason if dropped else "no sampled token"] += 1
    return made

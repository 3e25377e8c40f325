"""Advantages of whole groups, from the extra fields of a batch's rows."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.adapters._group_rows import check_values
from trajgym.adapters.verl._rows import row_from
from trajgym.rewards import Advantages, apply
from trajgym.trajectory import Group, InvalidInput, Member

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.adapters._group_rows import Values
    from trajgym.rewards import Deriver
    from trajgym.trajectory import FloatArray

__all__ = ["group_advantages"]


def group_advantages(
    carried: Sequence[str | None], sizes: Sequence[int], deriver: Deriver, *, planned: int
) -> tuple[list[FloatArray], Counter[str]]:
    """Return each row's advantages, and counts of groups and sessions.

    Args:
        carried: the extra field ``trajgym`` of each row; None for verl's padding rows.
        sizes: ids of each row's response.
        deriver: returns advantages.
        planned: number of sessions that a group should have.

    Returns:
        float32 ``[R]`` for each row, zeros for padding; and counts ``groups``, ``sessions`` and
        ``small`` (groups with fewer sessions than planned).

    Raises:
        InvalidInput: a row was not made by the agent loop ``trajgym`` or was packed for another
            deriver, or the deriver returns rewards.
    """
    described = [None if text is None else json.loads(text) for text in carried]
    if not any(described):
        raise InvalidInput(
            "no row of this batch comes from the agent loop 'trajgym': set agent_name in the data",
        )
    groups, tables = _sessions([one for one in described if one is not None], planned)
    values = deriver.derive(deriver.unpack(groups, tables))
    check_values(values, Advantages, "the section trajgym.deriver")
    found = [
        np.zeros(size, dtype=np.float32) if one is None else _placed(one, size, values)
        for one, size in zip(described, sizes, strict=True)
    ]
    counts = Counter(groups=len(groups), sessions=len(tables))
    counts["small"] = sum(len(group.members) < group.planned for group in groups)
    return found, counts


def _sessions(
    rows: Sequence[Mapping[str, Any]], planned: int
) -> tuple[list[Group], list[Mapping[str, Any]]]:
    groups: dict[str, Group] = {}
    tables: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        table = row.get("table")
        if table is None:
            continue
        name = row["session"]
        tables[name] = table
        group = groups.setdefault(
            row["group"], Group(id=row["group"], task=row["task"], planned=planned, sealed=True)
        )
        group.members.append(Member(name, table["sample"]))
    if missing := {row["session"] for row in rows} - set(tables):
        raise InvalidInput(
            f"session {min(missing)}: the batch lacks its last row, or it was run without "
            "trajgym.deriver",
        )
    return list(groups.values()), list(tables.values())


def _placed(described: Mapping[str, Any], size: int, values: Values) -> FloatArray:
    (row,) = apply([row_from(described, size)], values)
    assert row.advantage is not None
    return row.advantage

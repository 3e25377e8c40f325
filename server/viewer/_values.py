"""Rewards and advantages of several derivers for one session or group, with their terms."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trajgym.rewards import Deriver, explain, get_deriver, list_derivers
from trajgym.trajectory import Group, InvalidInput, Member, TrajgymError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.trajectory import Run, SessionTree

__all__ = ["describe_derivers", "group_of", "values_of"]

_MOST_MEMBERS = 256
"""Sessions of a group whose values are derived; larger groups are refused."""


def describe_derivers() -> list[dict[str, Any]]:
    """Return the registered derivers: name, one line of description, what they need."""
    return list(_described())


@lru_cache(maxsize=1)
def _described() -> tuple[dict[str, Any], ...]:
    found = []
    for name in list_derivers():
        try:
            deriver = get_deriver(name)
        except Exception as error:  # noqa: BLE001 - a plug-in's code; the others are shown
            found.append({"name": name, "about": f"can't be loaded: {error}", "broken": True})
            continue
        found.append(
            {
                "name": name,
                "about": ((type(deriver).__doc__ or "").strip().splitlines() or [""])[0],
                "signals": [*deriver.needs_signals],
                "group_relative": deriver.group_relative,
                "broken": False,
            }
        )
    return tuple(found)


def group_of(run: Run, tree: SessionTree) -> tuple[Group | None, list[SessionTree]]:
    """Return a session's group and the sessions of it that the run contains."""
    if tree.record.group is None:
        return None, [tree]
    group = run.group(tree.record.group)
    if group is None:
        return None, [tree]
    return group, trees_of(run, group)


def trees_of(run: Run, group: Group) -> list[SessionTree]:
    """Return the sessions of a group that the run contains.

    Raises:
        InvalidInput: the group is too large to be shown at once.
    """
    if len(group.members) > _MOST_MEMBERS:
        raise InvalidInput(
            f"group {group.id} has {len(group.members)} sessions; at most {_MOST_MEMBERS} are "
            "compared"
        )
    # A file may not have reached this machine, and a member may not have begun.
    return list(run.sessions(member.session for member in group.members))


def values_of(
    group: Group | None, trees: Sequence[SessionTree], shown: Sequence[str], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return what derivers, with their default settings, give the turns of these sessions.

    A group that is not sealed yet is treated as if it were: its values are provisional.

    Args:
        group: the group whose statistics the values depend on, if there is one.
        trees: its sessions.
        shown: ids of the sessions whose values are returned.
        names: of the derivers.

    Returns:
        One entry per deriver: its kind, ``sessions`` with the value, terms and spans of each turn,
        and ``partial``, true if they depend on other groups too; or ``problem``: why there are
        none.
    """
    provisional = group is not None and not group.sealed
    if group is not None:
        known = {tree.record.id for tree in trees}
        members = [m for m in group.members if m.session in known]
        joined = {m.session for m in members}
        members += [
            Member(t.record.id, t.record.sample) for t in trees if t.record.id not in joined
        ]
        group = replace(group, members=members, sealed=True)
    return [_values(group, trees, shown, name, provisional=provisional) for name in names]


def _values(
    group: Group | None,
    trees: Sequence[SessionTree],
    shown: Sequence[str],
    name: str,
    *,
    provisional: bool,
) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "provisional": provisional}
    try:
        deriver = get_deriver(name)
        lacking = {lacks for tree in trees if (lacks := deriver.missing(tree))}
        if lacking:
            return found | {"problem": "; ".join(sorted(lacking))}
        return found | _derived(deriver, group, trees, shown)
    except TrajgymError as error:
        return found | {"problem": str(error)}
    except Exception as error:  # noqa: BLE001 - boundary: a deriver may be a plug-in's code
        return found | {"problem": f"{type(error).__name__}: {error}"}


def _derived(
    deriver: Deriver, group: Group | None, trees: Sequence[SessionTree], shown: Sequence[str]
) -> dict[str, Any]:
    table = deriver.table([] if group is None else [group], trees)
    kind = type(deriver.derive(table)).__name__.lower()
    sessions = {
        session: [
            {"value": part.value, "terms": part.terms, "spans": part.spans}
            for part in explain(deriver, table, session)
        ]
        for session in shown
    }
    return {
        "kind": kind,
        "group_relative": deriver.group_relative,
        "partial": deriver.scope == "run",
        "sessions": sessions,
    }

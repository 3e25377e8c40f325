"""Rule D: separating, at the end of a session, the main agent's calls from side calls."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.server.joining._seen import Seen

__all__ = ["SET_BY_API", "Role", "main_root", "roles_of"]

SET_BY_API = "set through the API"
"""Reason of a role that is not to be replaced when the session closes."""


class Role(NamedTuple):
    """The role of a call, and the reason for it."""

    role: str
    reason: str


def main_root(calls: Sequence[Seen]) -> Seen | None:
    """Return the first call of the main agent: most turns, then tools, then earliest."""
    sizes: dict[int, int] = defaultdict(int)
    roots: dict[int, Seen] = {}
    for seen in calls:
        root = _root_of(seen)
        sizes[root.number] += 1
        roots[root.number] = root
    if not roots:
        return None
    best = max(sizes, key=lambda n: (sizes[n], bool(roots[n].tools), -n))
    return roots[best]


def roles_of(calls: Sequence[Seen]) -> dict[int, Role]:
    """Return the roles of the calls that belong neither to the main agent nor to a sub-agent.

    Keys are call numbers. Side calls are roots without a continuation whose head differs from the
    main agent's and that are not the session's last answered call, and calls that only served as
    summaries: leaves, and calls that nothing but such a summary continues (a hand-over in several
    steps).
    """
    main = main_root(calls)
    if main is None:
        return {}
    heads = {seen.head for seen in calls if _root_of(seen) is main}
    answered = [seen for seen in calls if seen.answered]
    last = answered[-1] if answered else None
    parents = {id(seen.parent) for seen in calls}
    summaries = _summaries_of(calls)
    found: dict[int, Role] = {}
    helpers: dict[str, Role] = {}
    """Roles of agents that only read answers: their later calls have the same."""
    for seen in calls:
        leaf = id(seen) not in parents
        if seen.number in summaries:
            found[seen.number] = Role("side:summary", "its text opens a later conversation")
        elif seen.parent is not None or not leaf or seen.head in heads:
            continue
        elif seen.rule == "O:reads-answer":
            helpers[seen.agent] = found[seen.number] = Role(
                "side:reader", "its prompt contains an earlier answer, and no call continues it"
            )
        elif seen.agent in helpers:
            found[seen.number] = helpers[seen.agent]
        elif seen is not last:
            early = not seen.tools and seen.number <= main.number + 1
            found[seen.number] = Role(
                "side:title" if early else "side:call",
                "its head differs from the main agent's, and no call continues it",
            )
    return found


def _summaries_of(calls: Sequence[Seen]) -> set[int]:
    """Return the numbers of the calls that only served as summaries."""
    found: set[int] = set()
    continued: set[int] = set()
    """Calls that something other than a summary continues."""
    for seen in reversed(calls):  # a call's continuations come after it
        if seen.summary and seen.number not in continued:
            found.add(seen.number)
        elif seen.parent is not None:
            continued.add(seen.parent.number)
    return found


def _root_of(seen: Seen) -> Seen:
    while seen.parent is not None:
        seen = seen.parent
    return seen

"""Sessions and groups from the inputs of a case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from trajgym.trajectory import (
    Attempt,
    CallResult,
    Group,
    Member,
    Outcome,
    SessionRecord,
    SessionTree,
    Status,
    Turn,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trajgym.rewards import Deriver, TurnTable

Inputs: TypeAlias = dict[str, Any]


class Unsupported(Exception):
    """The library has no such method or setting."""


@dataclass
class Documented:
    """Where the source code stops with an error, and the library does something documented."""

    note: str


class Method(NamedTuple):
    """How cases of some shape run."""

    name: str
    keys: frozenset[str]
    """Inputs that such a case has."""
    run: Callable[[Inputs, Inputs], dict[str, Any]]
    where: Mapping[str, Any] = {}
    """Inputs that have to have these values."""

    def fits(self, inputs: Inputs, document: Inputs) -> bool:
        same = all(inputs.get(key) == value for key, value in self.where.items())
        return self.keys <= inputs.keys() and same


def step(
    index: int,
    parent: int | None,
    *,
    reward: float | None = None,
    seen: str = "",
    signals: dict[str, Any] | None = None,
    calls: Sequence[bool] = (),
    **more: Any,
) -> Turn:
    """A turn that acted after seeing ``seen``."""
    content = more.pop("content", "x")
    return Turn(
        index=index,
        parent=parent,
        message={"role": "assistant", "content": content},
        context=[{"role": "user", "content": seen}] if seen else [],
        reward=reward,
        signals=signals or {},
        calls=[
            CallResult(call_id=f"c{i}", name="f", status="ok" if ok else "error")
            for i, ok in enumerate(calls)
        ],
        **more,
    )


def chain(
    name: str, turns: Sequence[Turn], score: float = 0.0, group: str = "g", **details: Any
) -> SessionTree:
    """A session with a single attempt over all the turns."""
    record = SessionRecord(id=name, task="t", env={"id": "e", "config": {}}, group=group)
    outcome = Outcome(score=score, passed=score > 0, details=details)
    leaf = len(turns) - 1 if turns else None
    attempt = Attempt(index=0, leaf=leaf, status=Status("completed"), outcome=outcome)
    return SessionTree(record, list(turns), [attempt])


def steps_chain(name: str, rewards: Sequence[float], group: str = "g") -> SessionTree:
    """A session whose turns have these step rewards and no outcome to speak of."""
    turns = [step(i, i - 1 if i else None, reward=r) for i, r in enumerate(rewards)]
    return chain(name, turns, group=group)


def groups_of(trees: Sequence[SessionTree]) -> list[Group]:
    """The sealed groups that the sessions say they belong to."""
    groups: dict[str, Group] = {}
    for tree in trees:
        name = tree.record.group or "g"
        found = groups.setdefault(name, Group(id=name, task="t", planned=1, sealed=True))
        found.members.append(Member(tree.record.id, len(found.members)))
    return list(groups.values())


def table_of(trees: Sequence[SessionTree], deriver: Deriver) -> TurnTable:
    """The table that the deriver wants."""
    for sample, tree in enumerate(trees):
        tree.record.sample = sample
    return deriver.table(groups_of(trees), trees)


@dataclass
class Node:
    """A node of a tree to be made: its children, or its reward if it is a leaf."""

    name: str
    children: list[Node]
    reward: float = 0.0


def tree_session(
    name: str, roots: Sequence[Node], group: str = "g"
) -> tuple[SessionTree, list[str]]:
    """A session that branches like the nodes, and the node of each turn.

    Every leaf is an attempt.
    """
    turns: list[Turn] = []
    names: list[str] = []
    attempts: list[Attempt] = []

    def visit(node: Node, parent: int | None, *, first: bool) -> None:
        index = len(turns)
        edge = "continue" if first else "alternative"
        turns.append(step(index, parent, edge=edge, attempt=len(attempts)))
        names.append(node.name)
        for i, child in enumerate(node.children):
            visit(child, index, first=i == 0)
        if not node.children:
            attempts.append(
                Attempt(
                    index=len(attempts),
                    leaf=index,
                    status=Status("completed"),
                    outcome=Outcome(score=node.reward, passed=node.reward > 0),
                )
            )

    for i, root in enumerate(roots):
        visit(root, None, first=i == 0)
    record = SessionRecord(id=name, task="t", env={"id": "e", "config": {}}, group=group)
    return SessionTree(record, turns, attempts), names

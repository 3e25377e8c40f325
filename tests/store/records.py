"""Records that the tests of the store write."""

from __future__ import annotations

from trajgym.trajectory import (
    SessionRecord,
    SessionTree,
    Store,
    Turn,
)


def record(name: str = "s") -> SessionRecord:
    return SessionRecord(id=name, task="t", env={"id": "e", "config": {}})


def turn(index: int, text: str = "x") -> Turn:
    parent = index - 1 if index else None
    return Turn(index=index, parent=parent, message={"role": "assistant", "content": text})


def write_golden(store: Store, tree: SessionTree) -> None:
    store.put_session(tree).wait()

"""Runs that the tests of datasets read, and what has to be equal in two runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.worlds import PNG
from trajgym.trajectory import (
    Attempt,
    Group,
    Member,
    Outcome,
    Run,
    SessionRecord,
    SessionTree,
    Status,
    Store,
    Task,
    Turn,
    image_part,
)


def write_run(
    path: Path,
    trees: Iterable[SessionTree],
    groups: Sequence[Group] = (),
    tasks: Sequence[Task] = (),
    *,
    more: bool = False,
) -> Path:
    """Write a run; with ``more`` also signals, amendments, derived values and later outcomes."""
    with Store(path) as store:
        for task in tasks:
            store.put_task(task)
        for tree in trees:
            store.begin_session(tree.record)
            for attempt in tree.attempts:
                store.put_attempt(tree.record.id, attempt)
            for turn in tree.turns:
                store.append_turn(tree.record.id, turn)
                if more:
                    store.add_signals(tree.record.id, turn.index, {"vote": 1}, source="judge")
                    store.amend_turn(tree.record.id, turn.index, role="side:title")
            if more:
                store.put_derived(tree.record.id, "grpo", b'{"values": []}')
                again = {a.index: Outcome(score=2.0, passed=True) for a in tree.attempts}
                store.put_outcomes(tree.record.id, "rubric", again)
        for group in groups:
            store.put_group(group)
        store.set_meta("env", '{"id": "e"}')
    return path


def contents(path: Path) -> dict[str, Any]:
    """Everything that a reader sees in a run, by id; dataclasses and arrays as JSON values."""
    with Run(path) as run:
        return {
            "sessions": {
                tree.record.id: [
                    tree.to_json(),
                    run.derived(tree.record.id),
                    run.outcomes(tree.record.id),
                    run.annotations(tree.record.id),
                ]
                for tree in run.sessions()
            },
            "groups": {group.id: group for group in run.groups()},
            "tasks": {task.id: task for task in run.tasks()},
        }


def tree(
    session: str,
    *,
    task: str = "t",
    group: str | None = None,
    score: float | None = 1.0,
    says: Sequence[str] = ("hi",),
    blob: str = "",
) -> SessionTree:
    """A session of text turns; it failed if there is no score."""
    turns = []
    for index, text in enumerate(says):
        shown: Any = [image_part(blob)] if blob else "and?"
        turns.append(
            Turn(
                index=index,
                parent=index - 1 if index else None,
                context=[] if index else [{"role": "user", "content": "Go."}],
                message={"role": "assistant", "content": text},
                observation=[{"role": "user", "content": shown}],
            )
        )
    status = Status("failed", "env") if score is None else Status("completed")
    outcome = None if score is None else Outcome(score=score, passed=score == 1.0)
    attempt = Attempt(leaf=len(says) - 1, status=status, outcome=outcome)
    record = SessionRecord(
        id=session, task=task, env={"id": "e", "config": {}}, group=group, labels={"by": "me"}
    )
    return SessionTree(record, turns, [attempt])


def grouped_run(path: Path, *, tasks: int = 4, samples: int = 3, shift: int = 0) -> Path:
    """A run of groups: sample ``i`` of task ``n`` passes if ``i < n``; the last one failed."""
    with Store(path) as store:
        blob, _ = store.put_blob(PNG, "image/png")
        store.put_blob(b"nothing refers to this", "text/plain")
    trees, groups, given = [], [], []
    for n in range(tasks):
        given.append(Task(id=f"t{n}", prompt=f"Do {n}.", data={"level": n // 2, "repo": "a"}))
        members = []
        for i in range(samples):
            last = i == samples - 1
            name = f"t{n}-{i}"
            score = None if last else float(i < n)
            trees.append(
                tree(
                    name,
                    task=f"t{n}",
                    group=f"g{n}",
                    score=score,
                    says=[f"{shift}"] * (n + 1),
                    blob=blob if n == 0 else "",
                )
            )
            members.append(Member(name, i, "failed:env" if last else ""))
        groups.append(
            Group(id=f"g{n}", task=f"t{n}", planned=samples, members=members, sealed=True)
        )
    return write_run(path, trees, groups, given, more=True)

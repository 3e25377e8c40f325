"""A run as a data set."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.adapters.exports.dataset._card import card
from trajgym.adapters.exports.dataset._tables import TABLES, TableWriter, arrow
from trajgym.trajectory import InvalidInput, Run
from trajgym.trajectory._codec import to_jsonable
from trajgym.trajectory.datasets import dataset_id, lineage, task_licence

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from trajgym.trajectory import Attempt, SessionTree, Task, Turn

__all__ = ["DatasetReport", "write_dataset"]


@dataclass(slots=True)
class DatasetReport:
    """What was written, which the card shows.

    Args:
        rows: number of rows by table.
        statuses: attempts by how they ended.
        passed: attempts that passed.
        scores: sum of the scores of scored attempts.
        scored: number of scored attempts.
        exact: turns with token ids.
        tokens: sampled and inserted response ids.
        solved: scored attempts and passed ones, by task.
        environments: sessions by environment spec (JSON).
        policies: turns by policy.
        tools: calls by tool.
        licences: tasks by licence; ``unknown`` for tasks that state none.
        synthetic: turns of a fake engine.
    """

    rows: dict[str, int] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    passed: int = 0
    scores: float = 0.0
    scored: int = 0
    exact: int = 0
    tokens: int = 0
    solved: dict[str, list[int]] = field(default_factory=dict)
    environments: Counter[str] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    tools: Counter[str] = field(default_factory=Counter)
    licences: Counter[str] = field(default_factory=Counter)
    synthetic: int = 0

    def add_session(self, tree: SessionTree) -> None:
        """Count a session."""
        self.environments[json.dumps(tree.record.env, sort_keys=True)] += 1
        task = self.solved.setdefault(tree.record.task, [0, 0])
        for attempt in tree.attempts:
            self.statuses[str(attempt.status)] += 1
            if attempt.outcome is not None:
                self.scored += 1
                self.scores += attempt.outcome.score
                self.passed += attempt.outcome.passed
                task[0] += 1
                task[1] += attempt.outcome.passed
        for turn in tree.turns:
            self.policies[turn.policy or "unknown"] += 1
            self.tools.update(call.name for call in turn.calls)
            self.synthetic += turn.synthetic
            if turn.tokens is not None:
                self.exact += 1
                self.tokens += turn.tokens.response_ids.size

    def add_task(self, task: Task) -> None:
        """Count a task's licence."""
        self.licences[task_licence(task) or "unknown"] += 1


def write_dataset(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    licence: str | None = None,
) -> DatasetReport:
    """Write a run as Parquet tables with a card; :func:`read_dataset` gives an equal run.

    ``datasets.load_dataset(out, "turns", streaming=True)`` reads a table; the tables are ``tasks``,
    ``sessions``, ``turns``, ``groups``, ``annotations``, ``values``, ``outcomes``, ``images``,
    ``blobs`` and ``meta``, without those that are empty. Columns are typed. Values of any shape,
    such as messages, are JSON text, because a typed struct would add keys that a value does not
    have. Images are a column of type ``Image``. Memory does not grow with the run.

    Args:
        path: of the run.
        out: directory, which must be empty or missing; it appears when it is complete.
        licence: SPDX id for the card's metadata.

    Raises:
        InvalidInput: ``out`` is not empty, or a value can't be represented.
        MissingExtra: pyarrow is not installed.
        StoreError: the run can't be read.
    """
    arrow()
    out = Path(out)
    if out.exists() and any(out.iterdir()):
        raise InvalidInput(f"{out}: not empty; choose another directory")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        report = DatasetReport()
        with Run(path) as run:
            _write(run, part, report)
            text = card(report, dataset_id(run), lineage(run), licence=licence)
        (part / "README.md").write_text(text, encoding="utf-8")
        if out.exists():
            out.rmdir()
        part.replace(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return report


def _write(run: Run, folder: Path, report: DatasetReport) -> None:
    tables = {name: TableWriter(folder, name) for name in TABLES}
    for key, value in run.meta().items():
        tables["meta"].write({"key": key, "value": value})
    for task in run.tasks():
        report.add_task(task)
        tables["tasks"].write({"id": task.id, "prompt": task.prompt, "data": _json(task.data)})
    for tree in run.sessions():
        report.add_session(tree)
        tables["sessions"].write(_session(tree))
        for turn in tree.turns:
            tables["turns"].write(_turn(tree.record.id, turn))
        _write_added(run, tree.record.id, tables)
    for group in run.groups():
        members = [member._asdict() for member in group.members]
        tables["groups"].write(
            {
                "id": group.id,
                "task": group.task,
                "planned": group.planned,
                "sealed": group.sealed,
                "members": members,
            }
        )
    for name in run.blobs():
        data, media_type = run.blob(name)
        row: dict[str, Any] = {"hash": name, "media_type": media_type}
        if media_type.startswith("image/"):
            tables["images"].write(row | {"image": {"bytes": data, "path": name}})
        else:
            tables["blobs"].write(row | {"data": data})
    for table in tables.values():
        table.close()
    report.rows = {name: table.rows for name, table in tables.items()}


def _write_added(run: Run, session: str, tables: dict[str, TableWriter]) -> None:
    """Write what was added to a session after it was recorded."""
    for note in run.annotations(session):
        tables["annotations"].write(
            {
                "session": session,
                "turn": note.turn,
                "source": note.source,
                "signals": _json(note.signals),
            }
        )
    for name, body in run.derived(session).items():
        tables["values"].write({"session": session, "name": name, "body": body})
    for name, outcomes in run.outcomes(session).items():
        for attempt, outcome in outcomes.items():
            tables["outcomes"].write(
                {
                    "session": session,
                    "name": name,
                    "attempt": attempt,
                    "score": outcome.score,
                    "passed": outcome.passed,
                    "details": _json(outcome.details),
                }
            )


def _session(tree: SessionTree) -> dict[str, Any]:
    record = tree.record
    return {
        "id": record.id,
        "task": record.task,
        "env": _json(record.env),
        "group": record.group,
        "sample": record.sample,
        "seed": record.seed,
        "tools": _json(record.tools),
        "budgets": _json(record.budgets),
        "labels": _json(record.labels),
        "created_at": record.created_at,
        "turns": len(tree.turns),
        "attempts": [_attempt(attempt) for attempt in tree.attempts],
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    outcome = attempt.outcome
    return {
        "index": attempt.index,
        "forked_at": attempt.forked_at,
        "leaf": attempt.leaf,
        "status": str(attempt.status),
        "cause": attempt.cause,
        "score": None if outcome is None else outcome.score,
        "passed": None if outcome is None else outcome.passed,
        "details": None if outcome is None else _json(outcome.details),
        "error": attempt.error,
        "ended_at": attempt.ended_at,
    }


_PLAIN = tuple(
    name
    for name, kind in TABLES["turns"].items()
    if kind in {"string", "int64", "float64", "bool"} and name not in {"session", "prompt_kept"}
)


def _turn(session: str, turn: Turn) -> dict[str, Any]:
    row: dict[str, Any] = {"session": session}
    row |= {name: getattr(turn, name) for name in _PLAIN}
    for name in ("context", "message", "observation", "signals"):
        row[name] = _json(getattr(turn, name))
    row["calls"] = _json([to_jsonable(call) for call in turn.calls])
    for name in ("usage", "sampling", "wire"):
        part = getattr(turn, name)
        row[name] = None if part is None else _json(to_jsonable(part))
    row["returns"] = turn.returns
    tokens = turn.tokens
    if tokens is None:
        return row | dict.fromkeys(_TOKENS)
    return row | {
        "prompt_kept": tokens.prompt_kept,
        "prompt_ids": tokens.prompt_ids,
        "response_ids": tokens.response_ids,
        "logprobs": tokens.logprobs,
        "segments": _rows(tokens.segments),
        "spans": _rows(tokens.spans),
        "token_images": _rows(tokens.images),
    }


_TOKENS = (
    "prompt_kept",
    "prompt_ids",
    "response_ids",
    "logprobs",
    "segments",
    "spans",
    "token_images",
)


def _rows(items: Iterable[Any]) -> list[dict[str, Any]]:
    return [item._asdict() for item in items]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

"""What the learners share: batches of tasks, the advantages of a batch, and the log."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from arms import ARMS, PROGRESS

from trajgym.rewards import Advantages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from trajgym.rollout import SealedGroup
    from trajgym.trajectory import Task


class Batches:
    """A source of tasks, which yields a batch each time that :meth:`more` is called."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = iter(tasks)
        self._asked: asyncio.Queue[int] = asyncio.Queue()

    def more(self, n: int) -> None:
        self._asked.put_nowait(n)

    async def read(self) -> AsyncIterator[Task]:
        while True:
            for _ in range(await self._asked.get()):
                yield next(self._tasks)


def credited(arm: str, sealed: list[SealedGroup]) -> Advantages:
    """Return the advantages of a batch of groups."""
    deriver = ARMS[arm].deriver
    trees = [tree for one in sealed for tree in one.sessions]
    values = deriver.derive(deriver.table([one.group for one in sealed], trees))
    assert isinstance(values, Advantages)
    return values


def seen(sealed: list[SealedGroup], values: Advantages) -> dict[str, Any]:
    """Return statistics of a batch, and the mean advantages of several kinds of turns."""
    groups: Counter[str] = Counter()
    attempts = [a for one in sealed for tree in one.sessions for a in tree.attempts]
    scored = [a for a in attempts if a.status.scored and a.outcome is not None]
    for one in sealed:
        scores = {
            a.outcome.score
            for tree in one.sessions
            for a in tree.attempts
            if a.status.scored and a.outcome is not None
        }
        kind = "none" if not scores else "all_failed" if max(scores) == 0 else "all_solved"
        groups["mixed" if len(scores) > 1 else kind] += 1
        credit = any(values.of(tree.record.id).any() for tree in one.sessions)
        spans = values.spans
        if spans is not None and not credit:
            places = [values.table.place(tree.record.id) for tree in one.sessions]
            turns_of = np.concatenate([np.arange(p.start, p.stop) for p in places])
            credit = bool(spans[np.isin(values.table.span_turn, turns_of)].any())
        groups["with_gradient"] += credit
    turns = [turn for one in sealed for tree in one.sessions for turn in tree.turns]
    table = PROGRESS.table([one.group for one in sealed], [t for o in sealed for t in o.sessions])
    gains = PROGRESS.derive(table).values
    kinds = {
        "gained": gains > 0,
        "lost": gains < 0,
        "repeated": np.array([bool(turn.signals.get("repeated")) for turn in turns]),
        "submitted": np.array([bool(turn.signals.get("submitted")) for turn in turns]),
        "edited": np.array(["files_edited_so_far" in turn.signals for turn in turns]),
    }
    shares = [float(a.outcome.details.get("f2p", 0.0)) for a in scored if a.outcome]
    return {
        "attempts": len(attempts),
        "scored": len(scored),
        "success": float(np.mean([a.outcome.score for a in scored if a.outcome] or [0.0])),
        "share_mended": float(np.mean(shares or [0.0])),
        "groups": dict(groups),
        "turns": len(turns),
        "sampled_tokens": sum(t.tokens.response_ids.size for t in turns if t.tokens is not None),
        "statuses": dict(Counter(str(a.status) for a in attempts)),
        "turns_of": {name: int(flags.sum()) for name, flags in kinds.items()},
        "credit_of": {
            name: float(values.values[flags].mean()) if flags.any() else None
            for name, flags in kinds.items()
        },
        "spread": float(np.abs(values.values).mean()) if turns else 0.0,
        "gains": float(np.clip(gains, 0, None).sum()),
    }


class Log:
    """A file to which JSON lines are appended."""

    def __init__(self, path: Path, **always: Any) -> None:
        self.path, self.always = path, always
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, "time": time.time(), **self.always, **fields})
        with self.path.open("a") as file:
            file.write(line + "\n")

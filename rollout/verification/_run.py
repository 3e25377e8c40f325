"""Verifying a recorded run: its actions are executed again in fresh environments."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from trajgym.rollout.verification._repeat import Difference, Repeated, Texts, repeat, why_not
from trajgym.trajectory import InvalidInput, Run
from trajgym.trajectory._internal import first_error

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from trajgym.trajectory import Attempt, SessionTree, Task

__all__ = ["VerifyReport", "verify_run"]

_KEPT = 1000
"""Differences that a report keeps; all of them are counted."""


@dataclass(slots=True)
class VerifyReport:
    """What :func:`verify_run` found.

    Args:
        sessions: sessions that were chosen.
        attempts: attempts that were repeated.
        equal: attempts without a difference.
        turns: turns that were executed and compared.
        outcomes: outcomes that were compared.
        causes: attempts with a difference, by cause; an attempt can have several.
        differences: the first 1,000 differences.
        partly: attempts that were compared up to some turn only, by reason.
        skipped: attempts that were not repeated, by reason.
    """

    sessions: int = 0
    attempts: int = 0
    equal: int = 0
    turns: int = 0
    outcomes: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)
    partly: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return plain | {
            "causes": dict(self.causes),
            "differences": [one._asdict() for one in self.differences],
            "partly": dict(self.partly),
            "skipped": dict(self.skipped),
        }

    def add(self, one: Repeated) -> None:
        """Count a repeated attempt."""
        if one.partly and not one.turns and not one.differences:
            self.skipped[one.partly] += 1
            return
        self.attempts += 1
        self.turns += one.turns
        self.outcomes += one.outcome
        self.equal += not one.differences
        self.causes.update(difference.cause for difference in one.differences)
        self.differences += one.differences[: _KEPT - len(self.differences)]
        if one.partly:
            self.partly[one.partly] += 1


async def verify_run(
    path: str | os.PathLike[str],
    *,
    share: float = 1.0,
    seed: int = 0,
    concurrency: int = 8,
    deadline: float = 3600.0,
    ignore: Sequence[str] = (),
    on_progress: Callable[[Repeated], object] | None = None,
) -> VerifyReport:
    """Execute a run's recorded actions in fresh environments, and report what differs.

    Every attempt is repeated alone: a new environment is reset with the recorded task, seed and
    budgets, and receives the assistant messages of the attempt's whole path. An attempt that was
    forked executes the turns that it shares with another one again. The turns of sub-agents are
    executed where they were spawned. No policy is called, and nothing is written.

    The causes of differences are:

    - ``environment``: it can't be found or imported here; ``task``: the run does not have it;
    - ``opening``: the reset gave other first messages;
    - ``observation``, ``reward``: the environment's response to a turn, or its step reward;
    - ``end``: the episode ended earlier, later or otherwise than recorded;
    - ``outcome``: another score, or another verdict;
    - ``error``: the environment failed where it had not, or had failed otherwise;
    - ``deadline``: the repetition took too long.

    An attempt that ended for a reason outside the environment (``failed:policy``, ``cancelled``,
    ``interrupted``) is compared up to its last turn, and one with a call that had timed out up to
    that call. Attempts are skipped if the environment or the task declares that it can't be
    repeated, if a model played the user, or if a proxy recorded them.

    Args:
        path: of the run; it may be written meanwhile.
        share: of the sessions, from 0 to 1; the choice depends on ``seed`` and session ids only.
        seed: of that choice.
        concurrency: attempts repeated at the same time.
        deadline: wall-clock seconds for one attempt.
        ignore: regular expressions; what they match is removed from texts before comparison.
        on_progress: called for every repeated attempt.

    Raises:
        InvalidInput: an argument is out of range, or not a regular expression.
        StoreError: the run can't be read.
    """
    if not 0 < share <= 1:
        raise InvalidInput(f"share is {share}; it must be more than 0 and at most 1")
    if concurrency < 1 or not deadline > 0:
        raise InvalidInput("concurrency and deadline must be positive")
    try:
        texts = Texts(ignore)
    except re.error as error:
        raise InvalidInput(
            f"ignore: {error.pattern!r} is not a regular expression: {error}"
        ) from error
    report = VerifyReport()
    slots = asyncio.Semaphore(concurrency)
    with Run(path) as run:
        tasks = {task.id: task for task in run.tasks()}

        async def one(tree: SessionTree, attempt: Attempt, task: Task | None) -> None:
            try:
                repeated = await repeat(tree, attempt, task, texts=texts, deadline=deadline)
                report.add(repeated)
                if on_progress is not None:
                    on_progress(repeated)
            finally:
                slots.release()

        sessions = run.sessions()
        with first_error():
            async with asyncio.TaskGroup() as group:
                while (tree := await asyncio.to_thread(next, sessions, None)) is not None:
                    if not _chosen(tree.record.id, share, seed):
                        continue
                    report.sessions += 1
                    for attempt in tree.attempts:
                        if reason := why_not(tree, attempt):
                            report.skipped[reason] += 1
                            continue
                        await slots.acquire()  # no more sessions are in memory than are repeated
                        group.create_task(one(tree, attempt, tasks.get(tree.record.task)))
    return report


def _chosen(session: str, share: float, seed: int) -> bool:
    digest = hashlib.sha256(f"{seed}:{session}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64

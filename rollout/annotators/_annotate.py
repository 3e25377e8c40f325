"""The interface of annotators, which add signals to recorded turns, and the loop that runs them."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from trajgym.envs._results import as_facts
from trajgym.envs.faults import CANCEL_SECONDS, contained, describe, stoppable
from trajgym.rollout._policy import PolicyUnavailable
from trajgym.trajectory import Run, Store, StoreError
from trajgym.trajectory._internal import AsyncClosing, first_error

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Callable, Sequence

    from trajgym.trajectory import SessionTree, Turn

__all__ = ["AnnotateReport", "Annotated", "Annotator", "annotate", "signals_of"]

_log = logging.getLogger(__name__)


class Annotator(AsyncClosing):
    """Calls a model or a tool for a turn, and returns signals."""

    source: str
    """Recorded with every signal. A turn that has signals from this source is not annotated again,
    so change the name when the question changes."""
    cancel_seconds: ClassVar[float] = CANCEL_SECONDS
    """Within which :meth:`annotate` has to end after its deadline cancelled it; then it is
    abandoned."""

    @abstractmethod
    def turns(self, tree: SessionTree) -> Sequence[Turn]:
        """Return the turns of a session that can be annotated."""

    @abstractmethod
    async def annotate(self, tree: SessionTree, turn: Turn) -> dict[str, Any]:
        """Return signals by name; JSON values.

        Raises:
            Exception: the turn gets no signals now, and is annotated again in the next call.
        """

    async def close(self) -> None:
        """Release the annotator's resources. Idempotent."""


class Annotated(NamedTuple):
    """A turn that has just been annotated, for progress bars."""

    session: str
    turn: int
    signals: dict[str, Any]
    """Empty if annotating failed."""
    cause: str
    """The cause if annotating failed, else empty."""


@dataclass(slots=True)
class AnnotateReport:
    """The result of one call of :func:`annotate`.

    Args:
        annotated: number of turns that got signals.
        skipped: number of turns that already had signals from this source.
        failed: number of turns that got none, by cause.
    """

    annotated: int = 0
    skipped: int = 0
    failed: Counter[str] = field(default_factory=Counter)


async def signals_of(
    annotator: Annotator, tree: SessionTree, turn: Turn, seconds: float
) -> dict[str, Any]:
    """Return the signals of one turn, as JSON values, within a deadline (s).

    Raises:
        Exception: the annotator failed, was too slow, or returned values that can't be recorded.
    """
    async with asyncio.timeout(seconds):
        with contained():
            found = await stoppable(
                annotator.annotate(tree, turn),
                f"annotator {annotator.source!r}",
                seconds=annotator.cancel_seconds,
            )
    return as_facts(found, "annotate()", "annotator")


async def annotate(
    path: str | os.PathLike[str],
    annotator: Annotator,
    *,
    concurrency: int = 8,
    seconds: float = 1800.0,
    give_up: int = 20,
    on_progress: Callable[[Annotated], None] | None = None,
) -> AnnotateReport:
    """Annotate every turn of a run that has no signals from this annotator yet.

    A turn's signals are durable before its worker begins the next turn, so the same call continues
    where an earlier one was stopped. Memory use does not grow with the size of the run.

    Args:
        path: a run that no process is writing.
        annotator: the annotator; not closed by this function.
        concurrency: number of turns that are annotated at the same time.
        seconds: deadline of one turn.
        give_up: stop after this many consecutive failures (a wrong key, an unreachable endpoint).
        on_progress: called for every turn, on the event loop; it must not block.

    Raises:
        StoreLocked: another process writes the run.
        PolicyUnavailable: ``give_up`` consecutive turns failed.
        Exception: what the annotator's ``turns`` raised; what is no ``Exception`` is raised as
            :class:`trajgym.envs.faults.UserCodeExit`.
    """
    with Run(path) as run:
        files = run.files
    job = _Job(annotator, seconds, give_up, on_progress or (lambda _: None))
    for file in files:
        async with Store(file) as store:
            with store.read() as run:
                await job.run(run, store, concurrency)
    return job.report


class _Job:
    """One call of :func:`annotate`."""

    def __init__(
        self,
        annotator: Annotator,
        seconds: float,
        give_up: int,
        on_progress: Callable[[Annotated], None],
    ) -> None:
        self.report = AnnotateReport()
        self._annotator = annotator
        self._seconds = seconds
        self._give_up = give_up
        self._on_progress = on_progress
        self._streak = 0

    async def run(self, run: Run, store: Store, concurrency: int) -> None:
        """Annotate one file."""
        jobs, lock = self._jobs(run), asyncio.Lock()

        async def work() -> None:
            while True:
                async with lock:
                    job = await anext(jobs, None)
                if job is None:
                    return
                await self._one(store, *job)

        try:
            with first_error():
                async with asyncio.TaskGroup() as workers:
                    for _ in range(concurrency):
                        workers.create_task(work())
        finally:
            await jobs.aclose()

    async def _jobs(self, run: Run) -> AsyncGenerator[tuple[SessionTree, Turn]]:
        trees = run.sessions()
        while (tree := await asyncio.to_thread(next, trees, None)) is not None:
            found = await asyncio.to_thread(run.annotations, tree.record.id)
            done = {one.turn for one in found if one.source == self._annotator.source}
            with contained():
                turns = list(self._annotator.turns(tree))
            for turn in turns:
                if turn.index in done:
                    self.report.skipped += 1
                else:
                    yield tree, turn

    async def _one(self, store: Store, tree: SessionTree, turn: Turn) -> None:
        session, source = tree.record.id, self._annotator.source
        try:
            signals = await signals_of(self._annotator, tree, turn, self._seconds)
            await store.add_signals(session, turn.index, signals, source=source)
        except StoreError:
            raise
        except Exception as error:  # boundary: an annotator; the turn stays unannotated
            cause = describe(error)
            self.report.failed[cause] += 1
            self._report(Annotated(session, turn.index, {}, cause))
            self._streak += 1
            if self._streak >= self._give_up:
                raise PolicyUnavailable(
                    f"{source}: {self._streak} consecutive turns failed, the last "
                    f"with {cause}; signals so far are kept; the same call continues from there",
                ) from error
            return
        self._streak = 0
        self.report.annotated += 1
        self._report(Annotated(session, turn.index, signals, ""))

    def _report(self, event: Annotated) -> None:
        try:
            with contained():
                self._on_progress(event)
        except Exception:  # noqa: BLE001 - boundary: a callback
            _log.exception("on_progress failed for session %s, turn %d", event.session, event.turn)

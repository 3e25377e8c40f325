"""Annotators: they look at recorded turns and add signals, which derivers read."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.rollout._policy import PolicyUnavailable
from trajgym.trajectory import AsyncClosing, Run, Store, StoreError

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Callable, Sequence

    from trajgym.trajectory import SessionTree, Turn

__all__ = ["AnnotateReport", "Annotated", "Annotator", "annotate"]


class Annotator(AsyncClosing):
    """Something that calls a model or a tool about a turn, and says what it found."""

    source: str
    """Who says so; recorded with every signal. A turn that has signals from it is not asked about
    again: change the name when the question changes."""

    @abstractmethod
    def turns(self, tree: SessionTree) -> Sequence[Turn]:
        """Return the turns of a session that can be asked about."""

    @abstractmethod
    async def annotate(self, tree: SessionTree, turn: Turn) -> dict[str, Any]:
        """Return signals by name; JSON values.

        Raises:
            Exception: the turn gets no signals now, and is asked about again in the next call.
        """

    async def close(self) -> None:
        """Free what the annotator holds. Idempotent."""


class Annotated(NamedTuple):
    """A turn that has just been asked about; for progress bars."""

    session: str
    turn: int
    signals: dict[str, Any]
    """Empty if it failed."""
    cause: str
    """Why, if it failed; else empty."""


@dataclass(slots=True)
class AnnotateReport:
    """What one call of :func:`annotate` did.

    Args:
        annotated: turns that got signals.
        skipped: turns that had some from this source.
        failed: turns that got none, by cause.
    """

    annotated: int = 0
    skipped: int = 0
    failed: Counter[str] = field(default_factory=Counter)


async def annotate(
    path: str | os.PathLike[str],
    annotator: Annotator,
    *,
    concurrency: int = 8,
    seconds: float = 1800.0,
    give_up: int = 20,
    on_progress: Callable[[Annotated], None] | None = None,
) -> AnnotateReport:
    """Ask about every turn of a run that has no signals from this annotator yet.

    Each turn's signals are durable before the next turn of that worker begins: stopped at any
    moment, the same call goes on where it stopped. Memory does not grow with the run.

    Args:
        path: a run that nobody is writing.
        annotator: not closed here.
        concurrency: turns at once.
        seconds: deadline of one turn.
        give_up: end after so many failures in a row, as with a wrong key or a dead endpoint.
        on_progress: called for every turn, on the event loop; keep it quick.

    Raises:
        StoreLocked: another process writes the run.
        PolicyUnavailable: ``give_up`` turns in a row failed.
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
            async with asyncio.TaskGroup() as workers:
                for _ in range(concurrency):
                    workers.create_task(work())
        except* (StoreError, PolicyUnavailable) as group:
            raise group.exceptions[0] from None
        finally:
            await jobs.aclose()

    async def _jobs(self, run: Run) -> AsyncGenerator[tuple[SessionTree, Turn]]:
        trees = run.sessions()
        while (tree := await asyncio.to_thread(next, trees, None)) is not None:
            found = await asyncio.to_thread(run.annotations, tree.record.id)
            done = {one.turn for one in found if one.source == self._annotator.source}
            for turn in self._annotator.turns(tree):
                if turn.index in done:
                    self.report.skipped += 1
                else:
                    yield tree, turn

    async def _one(self, store: Store, tree: SessionTree, turn: Turn) -> None:
        session = tree.record.id
        try:
            async with asyncio.timeout(self._seconds):
                signals = await self._annotator.annotate(tree, turn)
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            self.report.failed[cause] += 1
            self._on_progress(Annotated(session, turn.index, {}, cause))
            self._streak += 1
            if self._streak >= self._give_up:
                raise PolicyUnavailable(
                    f"{self._annotator.source}: {self._streak} turns in a row failed, the last "
                    f"with {cause}; what was found is kept, and the same call goes on from there",
                ) from error
            return
        self._streak = 0
        source = self._annotator.source
        await store.add_signals(session, turn.index, signals, source=source)
        self.report.annotated += 1
        self._on_progress(Annotated(session, turn.index, signals, ""))

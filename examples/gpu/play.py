"""The rollout worker of the experiment, which may be constructed in its own process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lab import MAX_TOKENS, SAMPLES, RecordingEngine
from maze import SPEC, tasks

from trajgym.adapters.trl import RolloutProcesses, RolloutWorker, Shard, VersionClock
from trajgym.rewards import GRPO, GiGPO, ReturnToGo, Stepwise
from trajgym.rollout.rendering import TemplateRenderer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from trajgym.rewards import Deriver
    from trajgym.trajectory import Task

DERIVERS: dict[str, Deriver] = {
    "outcome": GRPO(),
    # The outcome alone, discounted, and compared between attempts that reached the same state.
    "gigpo": GiGPO(earn="outcome"),
    "stepwise": Stepwise(gamma=0.95),
    "return_to_go": ReturnToGo(gamma=0.95),
}
TASKS = 2000
_DEADLINE = 30.0
"""Seconds after which another group begins, in case failed sessions left a batch incomplete."""


@dataclass(frozen=True)
class Play:
    """The settings of a worker, which can be sent to another process.

    Args:
        server: URL of the vLLM server.
        served: name of the model on the server.
        model: directory of the model, for its tokenizer.
        folder: directory for the store and the record of the engine's answers.
        deriver: a name of ``DERIVERS``.
        seed: seed of tasks and sessions.
        temperature: sampling temperature.
        concurrency: maximum number of concurrent sessions.
        max_staleness: maximum number of versions that a sample may be behind.
        waiting: maximum number of samples in the queue.
        stream: whether responses are streamed.
        first: groups that begin with the first version; with 0, groups begin at any time.
        groups: groups that begin with each later version.
    """

    server: str
    served: str
    model: str
    folder: Path
    deriver: str
    seed: int
    temperature: float
    concurrency: int
    max_staleness: int
    waiting: int
    stream: bool
    first: int = 0
    groups: int = 0

    @property
    def store(self) -> Path:
        return self.folder / "run"

    def calls(self, shard: Shard) -> Path:
        return self.folder / f"calls-{shard.index}.jsonl"


class InTurns(RolloutWorker):
    """A worker that begins one batch of groups with each version."""

    def __init__(
        self, play: Play, shard: Shard, mazes: Sequence[Task], *arguments: Any, **options: Any
    ) -> None:
        self.batches = Batches(mazes, shard.part(play.first), shard.part(play.groups))
        super().__init__(SPEC, self.batches.read(), *arguments, **options)
        self.batches.versions = self.versions

    def update_model_version(self, model_version: int) -> None:
        super().update_model_version(model_version)
        self.batches.tell()


class Batches:
    """A source of tasks, which yields a fixed number for each version of the weights."""

    def __init__(self, mazes: Sequence[Task], first: int, later: int) -> None:
        self.versions = VersionClock()
        self._mazes, self._first, self._later = mazes, first, later
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()

    def tell(self) -> None:
        """Signal a new version; may be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._news.set)

    async def read(self) -> AsyncIterator[Task]:
        """Yield the tasks of each version when it begins."""
        self._loop = asyncio.get_running_loop()
        served = given = 0
        while True:
            many = 1
            if self.versions.version > served:
                many = self._later if served else self._first
                served = self.versions.version
            for _ in range(many):
                yield self._mazes[given % len(self._mazes)]
                given += 1
            self._news.clear()
            if self.versions.version == served:
                try:
                    async with asyncio.timeout(_DEADLINE):
                        await self._news.wait()
                except TimeoutError:
                    continue


def make(play: Play, *, versions: VersionClock, shard: Shard) -> RolloutWorker:
    """Return a worker whose engine records the server's answers."""
    from transformers import AutoTokenizer

    mazes = shard.tasks(tasks(TASKS, seed=play.seed))
    engine = RecordingEngine(
        play.server,
        play.served,
        versions=versions,
        stream=play.stream,
        timeout=60,
        record=play.calls(shard),
    )
    renderer = TemplateRenderer(AutoTokenizer.from_pretrained(play.model))
    kind = (
        partial(InTurns, play, shard, mazes) if play.first else partial(RolloutWorker, SPEC, mazes)
    )
    return kind(
        engine,
        renderer,
        shard.store(play.store),
        versions=versions,
        temperature=play.temperature,
        max_tokens=MAX_TOKENS,
        turn_timeout=60,
        deriver=DERIVERS[play.deriver],
        samples=SAMPLES,
        concurrency=shard.part(play.concurrency),
        max_staleness=play.max_staleness,
        queue_maxsize=shard.part(play.waiting),
        seed=play.seed,
        stop_seconds=60,
    )


def worker_for(play: Play, processes: int) -> RolloutWorker | RolloutProcesses:
    """Return workers in separate processes or, for 0 processes, one in a thread of this process."""
    if not processes:
        return make(play, versions=VersionClock(), shard=Shard(0, 1))
    return RolloutProcesses(
        partial(make, play),
        processes=processes,
        temperature=play.temperature,
        max_staleness=play.max_staleness,
        queue_maxsize=play.waiting,
        stop_seconds=60,
    )

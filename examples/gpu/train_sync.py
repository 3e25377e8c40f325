"""The same updates, in turns and at once: generate, then train, then send weights; or side by side.

    CUDA_VISIBLE_DEVICES=0 python examples/gpu/train_sync.py --model SFT --out RESULTS \
        --work SCRATCH --steps 30

Both runs have the same worker, batches of as many sessions, and no evaluation on the way. In the
synchronous one, a version's sessions begin when its weights are in place, and nothing else does.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from lab import SAMPLES
from maze import tasks
from train_async import DERIVERS, TASKS, Lab, forever, parser, release

from trajgym.adapters.trl import VersionClock

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

_DEADLINE = 30.0
"""Seconds after which another group may begin: sessions that failed left a batch short."""


class Gate(VersionClock):
    """Lets a batch of tasks begin with every version."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()

    def announce(self, version: int) -> None:
        super().announce(version)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._news.set)

    async def batches(self, mazes: list[Any], groups: int) -> AsyncIterator[Any]:
        """Yield tasks, ``groups`` of them for each version."""
        self._loop = asyncio.get_running_loop()
        endless = iter(forever(mazes))
        served = 0
        while True:
            many = groups if self.version > served else 1
            served = self.version
            for _ in range(many):
                yield next(endless)
            self._news.clear()
            if self.version == served:
                try:
                    async with asyncio.timeout(_DEADLINE):
                        await self._news.wait()
                except TimeoutError:
                    continue


def compare(given: argparse.Namespace, transfer: Any = None) -> bool:
    """Do both runs and write how they compare; return whether there was time for both."""
    given.eval_every, given.keep = 0, ()
    lab = Lab(given, transfer)
    fixed = {"token_budget": -1}
    groups = given.batch * given.accumulate // SAMPLES
    gate = Gate()
    mazes = gate.batches(tasks(TASKS, seed=7), groups)
    sync = lab.run(
        "sync", DERIVERS["outcome"], 7, mazes=mazes, clock=gate, **fixed, max_staleness=0
    )
    release()
    if time.time() > given.deadline:
        return False
    side = lab.run("async", DERIVERS["outcome"], 7, **fixed)
    names = ("seconds_per_update", "trainer_idle_share", "sessions_per_s", "engine")
    lab.results.write(
        "compared",
        updates=min(sync["steps"], side["steps"]),
        sessions_per_update=groups * SAMPLES,
        sync={name: sync[name] for name in names},
        asynchronous={name: side[name] for name in names},
        speedup=sync["seconds_per_update"] / side["seconds_per_update"],
    )
    return not (sync["cut"] or side["cut"])


if __name__ == "__main__":
    made = parser()
    made.set_defaults(steps=30)
    compare(made.parse_args())

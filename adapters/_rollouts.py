"""Sessions on demand: tasks in, sealed groups out, for trainers that ask for one batch or task."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from trajgym.adapters._errors import RolloutFailed
from trajgym.rollout import Runner, group_id
from trajgym.trajectory import InvalidInput, Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from trajgym.envs import EnvSpec
    from trajgym.rollout import Policy, SealedGroup
    from trajgym.trajectory import Task

__all__ = ["Rollouts", "has_sessions"]


class Rollouts:
    """A runner that waits for tasks; lives in one event loop.

    Args:
        spec: the environment.
        policy: who speaks; closed with this.
        path: directory of the store; it must hold no sessions.
        samples: sessions of each task.
        runner_options: more settings of the runner.
    """

    def __init__(
        self,
        spec: EnvSpec,
        policy: Policy,
        path: Path,
        samples: int,
        runner_options: dict[str, Any],
    ) -> None:
        self._spec = spec
        self._policy = policy
        self._path = path
        self._samples = samples
        self._options = runner_options
        self._seen: Counter[str] = Counter()
        self._waiting: dict[str, asyncio.Future[SealedGroup]] = {}
        self._tasks: asyncio.Queue[Task] = asyncio.Queue()
        self._main: asyncio.Task[None] | None = None
        self.runner: Runner | None = None
        """Drives the sessions, once there are any."""

    async def play(self, tasks: Sequence[Task]) -> list[SealedGroup]:
        """Return a sealed group for each task, in their order.

        Raises:
            RolloutFailed: the runner ended.
        """
        if self._main is None:
            self._main = asyncio.create_task(self._serve(), name="trajgym-rollouts")
        loop = asyncio.get_running_loop()
        futures = []
        for task in tasks:
            name = group_id(task, self._seen[task.id])
            self._seen[task.id] += 1
            futures.append(loop.create_future())
            self._waiting[name] = futures[-1]
            self._tasks.put_nowait(task)
        done = asyncio.ensure_future(_all(futures))
        try:
            await asyncio.wait({done, self._main}, return_when=asyncio.FIRST_COMPLETED)
            if done.done():
                return done.result()
        finally:
            done.cancel()
        error = None if self._main.cancelled() else self._main.exception()
        raise RolloutFailed(f"the sessions ended early: {error!r}") from error

    async def close(self) -> None:
        """Cancel what runs. Idempotent."""
        main, self._main = self._main, None
        if main is not None:
            main.cancel()
            await asyncio.wait([main])

    async def _serve(self) -> None:
        try:
            async with Store(self._path) as store:
                if await asyncio.to_thread(has_sessions, store):
                    raise InvalidInput(
                        f"{store.path}: holds sessions already; give each training process a "
                        "directory of its own",
                    )
                options = {"samples": self._samples, **self._options}
                runner = Runner(self._spec, self._endless(), self._policy, store=store, **options)
                async with runner:
                    self.runner = runner
                    async for sealed in runner:
                        future = self._waiting.pop(sealed.group.id, None)
                        if future is not None and not future.done():
                            future.set_result(sealed)
        finally:
            self.runner = None
            await self._policy.close()

    async def _endless(self) -> AsyncIterator[Task]:
        while True:
            yield await self._tasks.get()


async def _all(futures: Sequence[asyncio.Future[SealedGroup]]) -> list[SealedGroup]:
    return list(await asyncio.gather(*futures))


def has_sessions(store: Store) -> bool:
    """Return whether anything was recorded in a store. Blocks."""
    with store.read() as run:
        return next(iter(run.summaries()), None) is not None

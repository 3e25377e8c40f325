"""Sessions on demand, for trainers that request one batch or one task at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from trajgym.adapters._errors import RolloutFailed
from trajgym.rollout import Runner, group_id
from trajgym.trajectory import InvalidInput, Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from trajgym.adapters._annotating import Annotators
    from trajgym.envs import EnvSpec
    from trajgym.rollout import Policy, RunSettings, SealedGroup
    from trajgym.trajectory import Task

__all__ = ["Rollouts", "has_sessions"]


class Rollouts:
    """A runner that waits for tasks; bound to one event loop.

    Args:
        spec: the environment.
        policy: generates the assistant messages; closed by :meth:`close`.
        path: directory of the store; it must not contain sessions.
        settings: how sessions are run.
        annotators: annotate each group before it is returned; closed by :meth:`close`.
    """

    def __init__(
        self,
        spec: EnvSpec,
        policy: Policy,
        path: Path,
        settings: RunSettings,
        annotators: Annotators | None = None,
    ) -> None:
        self._spec = spec
        self._policy = policy
        self._path = path
        self._settings = settings
        self._annotators = annotators
        self._seen: Counter[str] = Counter()
        self._waiting: dict[str, asyncio.Future[SealedGroup]] = {}
        self._tasks: asyncio.Queue[Task] = asyncio.Queue()
        self._main: asyncio.Task[None] | None = None
        self._store: Store | None = None
        self.runner: Runner | None = None
        """Runs the sessions; None before the first task."""

    async def play(self, tasks: Sequence[Task]) -> list[SealedGroup]:
        """Run the tasks and return their sealed groups, in the order of the tasks.

        Raises:
            RolloutFailed: the runner ended, or the annotators failed.
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
                return await self._annotated(done.result())
        finally:
            done.cancel()
        error = None if self._main.cancelled() else self._main.exception()
        raise RolloutFailed(f"the runner ended unexpectedly: {error!r}") from error

    async def _annotated(self, groups: list[SealedGroup]) -> list[SealedGroup]:
        """Annotate groups while the runner continues with others."""
        if self._annotators is None:
            return groups
        return list(await asyncio.gather(*(self._annotators(one, self._store) for one in groups)))

    async def close(self) -> None:
        """Cancel the running sessions. Idempotent."""
        main, self._main = self._main, None
        if main is not None:
            main.cancel()
            await asyncio.wait([main])

    async def _serve(self) -> None:
        try:
            async with Store(self._path) as store:
                if await asyncio.to_thread(has_sessions, store):
                    raise InvalidInput(
                        f"{store.path} already contains sessions; use a separate directory for "
                        "each training process",
                    )
                runner = Runner(
                    self._spec, self._endless(), self._policy, store=store, settings=self._settings
                )
                async with runner:
                    self.runner, self._store = runner, store
                    async for sealed in runner:
                        future = self._waiting.pop(sealed.group.id, None)
                        if future is not None and not future.done():
                            future.set_result(sealed)
        finally:
            self.runner = self._store = None
            await self._policy.close()
            if self._annotators is not None:
                await self._annotators.close()

    async def _endless(self) -> AsyncIterator[Task]:
        while True:
            yield await self._tasks.get()


async def _all(futures: Sequence[asyncio.Future[SealedGroup]]) -> list[SealedGroup]:
    return list(await asyncio.gather(*futures))


def has_sessions(store: Store) -> bool:
    """Return whether a store contains sessions. Blocks."""
    with store.read() as run:
        return next(iter(run.summaries()), None) is not None

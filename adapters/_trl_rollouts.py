"""Sessions on demand for TRL's synchronous trainer: tasks in, finished sessions out."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.adapters._errors import RolloutFailed
from trajgym.rewards import Advantages, TurnTable, apply
from trajgym.rollout import Runner, group_id
from trajgym.trajectory import InvalidInput, Store, UnsupportedModality, build_rows, validate_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from trajgym.envs import EnvSpec
    from trajgym.rewards import Deriver
    from trajgym.rollout import Policy, SealedGroup
    from trajgym.trajectory import SessionTree, Task, TrainingRow

__all__ = ["Played", "Rollouts", "has_sessions", "played"]


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

    async def play(self, tasks: Sequence[Task]) -> list[SealedGroup]:
        """Return a sealed group for each task, in their order.

        Raises:
            RolloutFailed: the runner ended.
        """
        if self._main is None:
            self._main = asyncio.create_task(self._serve(), name="trajgym-trl-rollouts")
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
                    async for sealed in runner:
                        future = self._waiting.pop(sealed.group.id, None)
                        if future is not None and not future.done():
                            future.set_result(sealed)
        finally:
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


class Played(NamedTuple):
    """One sample of a task, as TRL's ``rollout_func`` gives it back."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    mask: list[int]
    advantage: list[float]
    """Empty without a deriver, and for a filler."""
    score: float | None
    session: str


def played(
    sealed: SealedGroup, deriver: Deriver | None, filler: int, samples: int
) -> tuple[list[Played], Counter[str]]:
    """Return the samples of a group in order, and what was left out, by reason.

    TRL wants a row from every session: one that failed, or has no rows, becomes a filler without
    a trained token or a score. A session with several rows (its context was rewritten) gives the
    row of its last turn.

    Raises:
        InvalidInput: the deriver gives no advantages.
        UnsupportedModality: a session shows images.
    """
    left: Counter[str] = Counter(m.left for m in sealed.group.members if m.left)
    values = None
    if deriver is not None and sealed.sessions:
        digests = deriver.needs_digests
        table = TurnTable.build([sealed.group], sealed.sessions, digests=digests)
        values = deriver.derive(table)
        if not isinstance(values, Advantages):
            raise InvalidInput(f"deriver {deriver.name!r} gives rewards, not advantages")
    found: dict[int, Played] = {}
    for tree in sealed.sessions:
        try:
            rows = build_rows(tree).rows
            rows = rows if values is None else apply(rows, values)
            for row in rows:
                validate_row(row)
        except UnsupportedModality:
            raise
        except InvalidInput as error:
            left[str(error)] += 1
            continue
        if not rows:
            left["no sampled token"] += 1
            continue
        if len(rows) > 1:
            left["earlier rows of rewritten sessions"] += len(rows) - 1
        found[tree.record.sample] = _sample(tree, _last(tree, rows))
    empty = Played([filler], [filler], [0.0], [0], [], None, "")
    return [found.get(i, empty) for i in range(samples)], left


def _last(tree: SessionTree, rows: Sequence[TrainingRow]) -> TrainingRow:
    leaf = tree.attempts[0].leaf
    return next((row for row in rows if leaf in row.turns), rows[-1])


def _sample(tree: SessionTree, row: TrainingRow) -> Played:
    start = int(row.loss_mask.argmax())
    outcome = tree.attempts[row.attempt].outcome
    advantage = row.advantage
    return Played(
        prompt_ids=row.input_ids[:start].tolist(),
        completion_ids=row.input_ids[start:].tolist(),
        logprobs=row.logprobs[start:].tolist(),
        mask=row.loss_mask[start:].astype(int).tolist(),
        advantage=[] if advantage is None else advantage[start:].tolist(),
        score=None if outcome is None else outcome.score,
        session=tree.record.id,
    )

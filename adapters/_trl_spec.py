"""What TRL's synchronous GRPO trainer needs of an environment, in one object."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from trajgym.adapters._rollouts import Rollouts, has_sessions
from trajgym.adapters._trl_errors import need_trl
from trajgym.adapters._trl_loop import LoopThread
from trajgym.adapters._trl_rollouts import Played, played
from trajgym.adapters._trl_tools import finish_all, tool_env_class
from trajgym.envs import Session
from trajgym.rollout import LocalEngine, TemplateRenderer, TokenPolicy, group_id
from trajgym.trajectory import Group, InvalidInput, Member, Sampling, Store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from trajgym.envs import EnvSpec
    from trajgym.rewards import Deriver
    from trajgym.rollout import Renderer, TokenEngine
    from trajgym.trajectory import Task

__all__ = ["GRPOSpec"]

_CLOSE_SECONDS = 180.0


class GRPOSpec:
    """An environment and its tasks, to plug into TRL's ``GRPOTrainer``.

    Either let the trainer sample and call the tools, one after another::

        GRPOTrainer(model, spec.reward_funcs, args, spec.train_dataset,
                    environment_factory=spec.environment_factory)

    or let trajgym run the sessions, many at once and token-exact::

        StepGRPOTrainer(model, spec.reward_funcs, args, spec.train_dataset,
                        rollout_func=spec.rollout_func)

    Never both. Every session is recorded. Failed sessions have the reward None, which TRL leaves
    out of its statistics, never 0. Use the spec as a context manager, or call :meth:`close`:
    TRL never closes environments.

    Args:
        spec: the environment.
        tasks: the tasks; their ids must differ.
        store: directory for the runs; it must hold none yet. One folder is made for each process
            and group size.
        samples: sessions of a group, ``num_generations`` of the trainer.
        deriver: gives per-turn advantages to :class:`StepGRPOTrainer`; without it the trainer's
            own, of whole sessions.
        engine: makes the engine that samples, from the trainer; by default its own model in this
            process, one call at a time.
        renderer: messages <-> ids; by default the trainer's tokenizer's template.
        concurrency: sessions at once.
        max_tokens: most response tokens of a turn.
        batch_seconds: deadline for the sessions of one batch.
        **runner_options: more settings of :class:`trajgym.rollout.Runner`.

    Raises:
        InvalidInput: no tasks, or ids that are used twice.
        MissingExtra: TRL is not installed.
    """

    def __init__(
        self,
        spec: EnvSpec,
        tasks: Iterable[Task],
        store: str | os.PathLike[str],
        *,
        samples: int = 8,
        deriver: Deriver | None = None,
        engine: Callable[[Any], TokenEngine] | None = None,
        renderer: Renderer | None = None,
        concurrency: int = 16,
        max_tokens: int = 512,
        batch_seconds: float = 6 * 3600.0,
        **runner_options: Any,
    ) -> None:
        need_trl()
        known = list(tasks)
        self._tasks = {task.id: task for task in known}
        if not known or len(self._tasks) != len(known):
            raise InvalidInput(f"{len(known)} tasks with {len(self._tasks)} ids: give each its own")
        self.spec = spec
        self.left: Counter[str] = Counter()
        """What gave no row, by reason."""
        self._path = Path(store)
        self._samples = samples
        self._deriver = deriver
        self._make_engine = engine or _own_model
        self._renderer = renderer
        self._max_tokens = max_tokens
        self._batch_seconds = batch_seconds
        self._options = {"concurrency": concurrency, **runner_options}
        self._loop = LoopThread("trajgym-trl-sync")
        self._rollouts: dict[int, Rollouts] = {}
        self._engines: list[TokenEngine] = []
        self._store: Store | None = None
        self._opened: Counter[str] = Counter()
        self._tool_env: Any = None
        self._closed = False

    # What the trainer takes -------------------------------------------------------------------

    @property
    def train_dataset(self) -> Any:
        """A ``datasets.Dataset`` with a row for each task: ``prompt`` and ``task``."""
        from datasets import Dataset

        return Dataset.from_list([self._row(task) for task in self._tasks.values()])

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """One reward function: the sessions' scores, None for those that failed."""

        def outcome(
            completions: list[Any],
            environments: Any = None,
            trajgym_score: list[float | None] | None = None,
            **_: Any,
        ) -> list[float | None]:
            if trajgym_score is not None:
                return list(trajgym_score)
            if environments is None:
                raise InvalidInput(
                    "this reward function needs the spec's rollout_func or environment_factory",
                )
            return self._score(environments, completions)

        return [outcome]

    @property
    def environment_factory(self) -> Any:
        """A class whose methods are the environment's tools.

        The environment's opening messages are joined into the user's message. TRL ends an episode
        when the model calls no tool: that message is the last one that the environment sees.
        """
        if self._tool_env is None:
            store = Store(self._path / "tools")
            if has_sessions(store):
                store.close()
                raise InvalidInput(f"{store.path}: holds sessions; use another directory")
            self._store = store
            self._tool_env = tool_env_class(self.spec, self._tasks, self._loop, self._open_session)
        return self._tool_env

    def rollout_func(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Run a session for each prompt, many at once, and return their rows.

        Lengths and masks are checked before TRL, which does not, sees them.

        Raises:
            InvalidInput: the prompts are not those of :attr:`train_dataset`.
            RolloutFailed: the runner ended.
            TimeoutError: the batch took more than ``batch_seconds``.
        """
        training = bool(trainer.model.training)
        most = trainer.num_generations if training else trainer.num_generations_eval
        runs = _runs([self._task_of(prompt) for prompt in prompts], most)
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.eval()
        try:
            for engine in self._engines:
                if isinstance(engine, LocalEngine):
                    engine.version = trainer.state.global_step
            rows = self._loop.run(self._play(runs, trainer), self._batch_seconds)
        finally:
            model.train(training)
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.mask for row in rows],
            "trajgym_score": [row.score for row in rows],
            "trajgym_advantage": [row.advantage for row in rows],
            "trajgym_session": [row.session for row in rows],
        }

    def close(self) -> None:
        """End every session and close every environment. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._loop.run(self._close(), _CLOSE_SECONDS)
        finally:
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Sessions by rollout_func -------------------------------------------------------------------

    async def _play(self, runs: Sequence[tuple[Task, int]], trainer: Any) -> list[Played]:
        sizes = sorted({count for _, count in runs})
        batches = [
            self._rollouts_of(size, trainer).play([task for task, n in runs if n == size])
            for size in sizes
        ]
        by_size = dict(zip(sizes, map(iter, await asyncio.gather(*batches)), strict=True))
        filler = int(trainer.processing_class.eos_token_id)
        rows: list[Played] = []
        for _, count in runs:
            sealed = next(by_size[count])
            found, left = await asyncio.to_thread(played, sealed, self._deriver, filler, count)
            self.left += left
            rows += found
        return rows

    def _rollouts_of(self, size: int, trainer: Any) -> Rollouts:
        if size not in self._rollouts:
            engine = self._make_engine(trainer)
            self._engines.append(engine)
            policy = TokenPolicy(
                engine,
                self._renderer or TemplateRenderer(trainer.processing_class),
                sampling=Sampling(temperature=trainer.args.temperature),
                max_tokens=self._max_tokens,
            )
            path = self._path / f"process{trainer.accelerator.process_index}" / f"groups-of-{size}"
            self._rollouts[size] = Rollouts(self.spec, policy, path, size, self._options)
        return self._rollouts[size]

    def _row(self, task: Task) -> dict[str, Any]:
        message = {"role": "user", "content": "", "task_id": task.id}
        return {"prompt": [message], "task": task.id}

    def _task_of(self, prompt: Any) -> Task:
        last = prompt[-1] if isinstance(prompt, list) and prompt else {}
        name = last.get("task_id") if isinstance(last, dict) else None
        if name not in self._tasks:
            raise InvalidInput(
                f"a prompt names the task {name!r}: use the train_dataset of this GRPOSpec",
            )
        return self._tasks[name]

    # Sessions by environment_factory ----------------------------------------------------------

    def _open_session(self, task: Task) -> Session:
        assert self._store is not None
        number = self._opened[task.id]
        self._opened[task.id] += 1
        group = group_id(task, number // self._samples)
        sample = number % self._samples
        self._store.put_task(task)
        return Session(
            self.spec,
            task,
            store=self._store,
            session_id=f"{group}-{sample}",
            group=group,
            sample=sample,
            budgets=self._options.get("budgets"),
            labels=self._options.get("labels"),
        )

    def _score(self, envs: Sequence[Any], completions: Sequence[Any]) -> list[float | None]:
        scores = self._loop.run(finish_all(envs, completions), self._batch_seconds)
        groups: dict[str, Group] = {}
        for env in envs:
            record, status = env._session.record, env._session.status
            left = "" if status.scored else str(status)
            group = groups.setdefault(
                record.group,
                Group(id=record.group, task=record.task, planned=self._samples, sealed=True),
            )
            group.members.append(Member(record.id, record.sample, left))
            if left:
                self.left[left] += 1
        assert self._store is not None
        for group in groups.values():
            self._store.put_group(group)
        return scores

    async def _close(self) -> None:
        for rollouts in self._rollouts.values():
            await rollouts.close()
        if self._tool_env is not None:
            for env in self._tool_env._made:
                await env._close()
        if self._store is not None:
            await self._store.aclose()


def _runs(tasks: Sequence[Task], most: int) -> list[tuple[Task, int]]:
    """Return each group of equal tasks that follow each other, at most ``most`` long."""
    runs: list[tuple[Task, int]] = []
    for _, same in itertools.groupby(tasks, key=lambda task: task.id):
        members = list(same)
        starts = range(0, len(members), most)
        runs += [(members[0], len(members[start : start + most])) for start in starts]
    return runs


def _own_model(trainer: Any) -> TokenEngine:
    model = trainer.accelerator.unwrap_model(trainer.model)
    return LocalEngine(model, name="trainer", version=trainer.state.global_step)

"""Sessions for TRL's synchronous GRPO trainer."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from trajgym.adapters._annotating import as_annotators
from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters._group_rows import RowBuilder
from trajgym.adapters._rollouts import Rollouts, has_sessions
from trajgym.adapters.trl._errors import need_trl
from trajgym.adapters.trl._loop import LoopThread
from trajgym.adapters.trl._rollouts import Played, played
from trajgym.adapters.trl._tools import finish_all, tool_env_class
from trajgym.envs import Session
from trajgym.rewards import Advantages
from trajgym.rollout import RunSettings, TokenPolicy, group_id
from trajgym.rollout.engines import LocalEngine
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import Group, InvalidInput, Member, Sampling, Store
from trajgym.trajectory._internal import Closing

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable, Sequence

    from trajgym.adapters._annotating import Annotators, AnnotatorSpec
    from trajgym.adapters._group_rows import MissingRule
    from trajgym.envs import EnvSpec
    from trajgym.rewards import DeriverSpec
    from trajgym.rollout import RunKeywords
    from trajgym.rollout.engines import TokenEngine
    from trajgym.rollout.rendering import Renderer
    from trajgym.trajectory import Task

__all__ = ["GRPORollouts"]

_CLOSE_SECONDS = 180.0
_DEFAULTS = RunSettings(samples=8, concurrency=16)


class GRPORollouts(Closing):
    """An environment and its tasks for TRL's ``GRPOTrainer``.

    Either let the trainer sample and call the tools one after another::

        GRPOTrainer(model, spec.reward_funcs, args, spec.train_dataset,
                    environment_factory=spec.environment_factory)

    or let trajgym run the sessions concurrently and token-exactly::

        StepGRPOTrainer(model, spec.reward_funcs, args, spec.train_dataset,
                        rollout_func=spec.rollout_func)

    The two can't be combined. Every session is recorded. The reward of a failed session is None,
    which TRL excludes from its statistics, never 0. Use the object as a context manager or call
    :meth:`close`, because TRL never closes environments.

    Args:
        spec: the environment.
        tasks: the tasks; their ids must differ.
        store: directory for the runs, which must not contain any. A subdirectory is created for
            each process and group size.
        settings: how sessions are run; by default 8 samples, which must equal the trainer's
            ``num_generations``, and 16 concurrent sessions.
        deriver: returns per-token advantages for :class:`StepGRPOTrainer`, see
            :func:`trajgym.rewards.as_deriver`; without it the trainer computes its own advantages
            of whole sessions.
        annotators: annotate each group before its advantages are derived, see
            :class:`trajgym.adapters.Annotators`; closed by :meth:`close`. Used by ``rollout_func``
            only.
        missing_signals: how to treat sessions without the signals that the deriver reads.
        allow: kinds of sessions that are accepted nevertheless; see
            :class:`trajgym.adapters.Gate`.
        engine: called with the trainer, returns the engine that samples; by default the trainer's
            own model in this process, one call at a time.
        renderer: converts messages to ids and back; by default with the chat template of the
            trainer's tokenizer and its ``chat_template_kwargs``.
        max_tokens: most response tokens of a turn.
        batch_seconds: deadline for the sessions of one batch (s).
        give_up: number of consecutive groups without a row that ends the training.
        **overrides: settings by name: ``samples``, ``concurrency``, ``budgets``, ``retries``, ...

    Raises:
        InvalidInput: there are no tasks, two tasks have the same id, or a setting is unknown or
            invalid.
        MissingExtra: TRL is not installed.
    """

    def __init__(
        self,
        spec: EnvSpec,
        tasks: Iterable[Task],
        store: str | os.PathLike[str],
        *,
        settings: RunSettings | None = None,
        deriver: DeriverSpec | None = None,
        annotators: Annotators | Sequence[AnnotatorSpec] | None = None,
        missing_signals: MissingRule = "error",
        allow: Collection[str] = (),
        engine: Callable[[Any], TokenEngine] | None = None,
        renderer: Renderer | None = None,
        max_tokens: int = 512,
        batch_seconds: float = 6 * 3600.0,
        give_up: int = 16,
        **overrides: Unpack[RunKeywords],
    ) -> None:
        need_trl()
        self.settings = RunSettings.of(settings or _DEFAULTS, overrides)
        known = list(tasks)
        self._tasks = {task.id: task for task in known}
        if not known or len(self._tasks) != len(known):
            raise InvalidInput(f"{len(known)} tasks have {len(self._tasks)} ids; ids must differ")
        self.spec = spec
        self.left: Counter[str] = Counter()
        """Number of sessions and rows that were left out, by reason."""
        self._path = Path(store)
        self._build = RowBuilder(
            deriver,
            "StepGRPOTrainer",
            kind=Advantages,
            allow=allow,
            missing_signals=missing_signals,
        )
        self._annotators = as_annotators(annotators)
        self._make_engine = engine or _own_model
        self._renderer = renderer
        self._max_tokens = max_tokens
        self._batch_seconds = batch_seconds
        self._give_up = give_up
        self._barren = 0
        self._loop = LoopThread("trajgym-trl-sync")
        self._rollouts: dict[int, Rollouts] = {}
        self._engines: list[TokenEngine] = []
        self._store: Store | None = None
        self._opened: Counter[str] = Counter()
        self._tool_env: Any = None
        self._closed = False

    # Arguments of the trainer -------------------------------------------------------------------

    @property
    def train_dataset(self) -> Any:
        """A ``datasets.Dataset`` with one row per task, columns ``prompt`` and ``task``."""
        from datasets import Dataset

        return Dataset.from_list([self._row(task) for task in self._tasks.values()])

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """One reward function, which returns the sessions' scores and None for failures."""

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
                    "this reward function works only with rollout_func or environment_factory of "
                    "the same GRPORollouts",
                )
            return self._score(environments, completions)

        return [outcome]

    @property
    def environment_factory(self) -> Any:
        """A class whose methods are the environment's tools.

        The environment's opening messages are joined into one user message. TRL ends an episode
        when the model calls no tool; the environment receives that message as the last one.
        """
        if self._tool_env is None:
            store = Store(self._path / "tools")
            if has_sessions(store):
                store.close()
                raise InvalidInput(f"{store.path} contains sessions; use another directory")
            self._store = store
            self._tool_env = tool_env_class(self.spec, self._tasks, self._loop, self._open_session)
        return self._tool_env

    def rollout_func(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Run a session for each prompt concurrently and return their rows.

        Lengths and masks are checked here, because TRL does not check them.

        Raises:
            InvalidInput: a prompt is not from :attr:`train_dataset`.
            RolloutFailed: the runner ended, or ``give_up`` consecutive groups had no row.
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
        """Cancel running sessions and close all environments. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._loop.run(self._close(), _CLOSE_SECONDS)
        finally:
            self._loop.close()

    # Sessions of rollout_func -------------------------------------------------------------------

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
            found, left = await asyncio.to_thread(played, sealed, self._build, filler, count)
            self.left += left
            self._barren = 0 if any(row.session for row in found) else self._barren + 1
            if self._barren >= self._give_up:
                raise RolloutFailed(
                    f"{self._barren} consecutive groups had no row, the last because of "
                    f"{dict(left)}; the store in {self._path} has the cause for each session",
                )
            rows += found
        return rows

    def _rollouts_of(self, size: int, trainer: Any) -> Rollouts:
        if size not in self._rollouts:
            engine = self._make_engine(trainer)
            self._engines.append(engine)
            policy = TokenPolicy(
                engine,
                self._renderer or _trainers_renderer(trainer),
                sampling=Sampling(temperature=trainer.args.temperature),
                max_tokens=self._max_tokens,
            )
            path = self._path / f"process{trainer.accelerator.process_index}" / f"groups-of-{size}"
            self._rollouts[size] = Rollouts(
                self.spec, policy, path, replace(self.settings, samples=size), self._annotators
            )
        return self._rollouts[size]

    def _row(self, task: Task) -> dict[str, Any]:
        message = {"role": "user", "content": "", "task_id": task.id}
        return {"prompt": [message], "task": task.id}

    def _task_of(self, prompt: Any) -> Task:
        last = prompt[-1] if isinstance(prompt, list) and prompt else {}
        name = last.get("task_id") if isinstance(last, dict) else None
        if name not in self._tasks:
            raise InvalidInput(
                f"a prompt has the unknown task {name!r}: use train_dataset of this GRPORollouts",
            )
        return self._tasks[name]

    # Sessions of environment_factory ----------------------------------------------------------

    def _open_session(self, task: Task) -> Session:
        assert self._store is not None
        number = self._opened[task.id]
        self._opened[task.id] += 1
        group = group_id(task, number // self.settings.samples)
        sample = number % self.settings.samples
        self._store.put_task(task)
        return Session(
            self.spec,
            task,
            store=self._store,
            session_id=f"{group}-{sample}",
            group=group,
            sample=sample,
            budgets=self.settings.budgets,
            labels=self.settings.labels,
        )

    def _score(self, envs: Sequence[Any], completions: Sequence[Any]) -> list[float | None]:
        scores = self._loop.run(finish_all(envs, completions), self._batch_seconds)
        groups: dict[str, Group] = {}
        for env in envs:
            record, status = env._session.record, env._session.status
            left = "" if status.scored else str(status)
            group = groups.setdefault(
                record.group,
                Group(
                    id=record.group, task=record.task, planned=self.settings.samples, sealed=True
                ),
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
    """Return consecutive equal tasks as pairs of task and number, at most ``most`` each."""
    runs: list[tuple[Task, int]] = []
    for _, same in itertools.groupby(tasks, key=lambda task: task.id):
        members = list(same)
        starts = range(0, len(members), most)
        runs += [(members[0], len(members[start : start + most])) for start in starts]
    return runs


def _trainers_renderer(trainer: Any) -> Renderer:
    options = trainer.args.chat_template_kwargs
    return TemplateRenderer(trainer.processing_class, template_options=options)


def _own_model(trainer: Any) -> TokenEngine:
    model = trainer.accelerator.unwrap_model(trainer.model)
    return LocalEngine(model, name="trainer", version=trainer.state.global_step)

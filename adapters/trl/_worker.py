"""The rollout worker of TRL's asynchronous GRPO trainer."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from trajgym.adapters._annotating import as_annotators
from trajgym.adapters._gate import check_allowances
from trajgym.adapters._rollouts import has_sessions
from trajgym.adapters.trl._errors import need_trl
from trajgym.adapters.trl._fleet_parts import SampleHandler
from trajgym.adapters.trl._group_samples import SampleBuilder
from trajgym.adapters.trl._sample_worker import SampleWorker
from trajgym.adapters.trl._settings import check_distribution, split_settings
from trajgym.adapters.trl._versions import VersionClock
from trajgym.rollout import Runner, RunSettings, TokenPolicy, VLLMEngine
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import InvalidInput, Sampling, Store
from trajgym.trajectory._internal import first_error

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Collection, Iterable, Iterator
    from contextlib import AsyncExitStack

    from trajgym.adapters._annotating import Annotators, AnnotatorSpec
    from trajgym.adapters._group_rows import MissingRule
    from trajgym.adapters.trl._group_samples import Tally
    from trajgym.adapters.trl._samples import Form
    from trajgym.envs import EnvSpec
    from trajgym.rewards import DeriverSpec
    from trajgym.rollout import RunKeywords, SealedGroup
    from trajgym.rollout.engines import TokenEngine
    from trajgym.rollout.rendering import Renderer
    from trajgym.trajectory import Task

__all__ = ["TRL_STALENESS", "RolloutWorker"]

_log = logging.getLogger(__name__)
_DEFAULTS = RunSettings(samples=8, concurrency=64, max_staleness=4)
TRL_STALENESS = 4
"""The default of ``AsyncGRPOConfig``."""
_ANNOTATED = 8
"""Most sealed groups that are annotated concurrently."""


class RolloutWorker(SampleWorker):
    """Runs sessions for TRL's ``AsyncGRPOTrainer`` and passes their rows to it.

    ::

        worker = RolloutWorker.for_vllm(args, spec, tasks, model=name, tokenizer=tok, store="run")
        trainer = AsyncGRPOTrainer(model=name, args=args, train_dataset=..., rollout_worker=worker)
        worker.attach(trainer)
        trainer.train()

    The worker runs :class:`trajgym.rollout.Runner` in its own thread and event loop. Every session
    is in the store before its samples are in the queue. While the queue is full, no further
    sessions are run. Failed sessions have no samples and don't count in their group.

    Args:
        spec: the environment.
        tasks: a sequence is repeated endlessly and shuffled before each pass; any other iterable is
            read once.
        engine: samples ids; its log-probs must be those that the trainer computes, after
            temperature and over all tokens. Closed with the worker.
        renderer: converts messages to ids and back, for the engine's model.
        store: a run directory, or an open store, without sessions. Policy versions start at 0 in
            each training process, so each process needs its own run.
        versions: the clock of the engine, if it takes one (:class:`VLLMEngine`).
        temperature: of sampling; the trainer's must be the same.
        max_tokens: most response tokens of a turn.
        turn_timeout: seconds after which an engine that does not respond counts as unavailable.
        deriver: returns advantages, see :func:`trajgym.rewards.as_deriver`; ``grpo`` by default.
        annotators: annotate each group before its advantages are derived, see
            :class:`trajgym.adapters.Annotators`; closed with the worker.
        missing_signals: how to treat sessions without the signals that the deriver reads.
        allow: kinds of sessions that are accepted nevertheless; see
            :class:`trajgym.adapters.Gate`. A fake engine needs ``synthetic``.
        form: how rows are split into samples, see :func:`rollout_samples`.
        skip_flat: leave out groups all of whose advantages are 0; they have no gradient but count
            in the mean over tokens.
        settings: how sessions are run; by default 8 samples, 64 concurrent sessions and a
            ``max_staleness`` of 4. ``seed`` also seeds the shuffling of tasks.
        token_budget: the trainer's; sessions with a longer sample are left out as a whole and
            counted, where TRL would drop only that sample.
        queue_maxsize: most samples that wait for the trainer.
        shuffle: whether a repeated sequence of tasks is shuffled.
        stop_seconds: deadline of :meth:`stop` (s).
        **overrides: settings by name: ``samples``, ``concurrency``, ``budgets``, ``retries``, ...

    Raises:
        InvalidInput: a setting is invalid, or does not fit the trainer's loss.
        MissingExtra: TRL is not installed.
    """

    def __init__(
        self,
        spec: EnvSpec,
        tasks: Iterable[Task] | AsyncIterator[Task],
        engine: TokenEngine,
        renderer: Renderer,
        store: Store | str | os.PathLike[str],
        *,
        versions: VersionClock | None = None,
        temperature: float = 1.0,
        max_tokens: int = 4096,
        turn_timeout: float = 600.0,
        deriver: DeriverSpec | None = None,
        annotators: Annotators | Sequence[AnnotatorSpec] | None = None,
        missing_signals: MissingRule = "error",
        allow: Collection[str] = (),
        form: Form = "auto",
        skip_flat: bool = False,
        settings: RunSettings | None = None,
        token_budget: int | None = None,
        queue_maxsize: int = 1024,
        shuffle: bool = True,
        stop_seconds: float = 180.0,
        **overrides: Unpack[RunKeywords],
    ) -> None:
        need_trl()
        _check_engine(engine, temperature, check_allowances(allow))
        self.settings = settings = RunSettings.of(settings or _DEFAULTS, overrides)
        self._build = SampleBuilder(
            "grpo" if deriver is None else deriver,
            form,
            skip_flat=skip_flat,
            allow=allow,
            temperature=temperature,
            missing_signals=missing_signals,
            longest=token_budget,
        )
        super().__init__(
            versions=versions,
            temperature=temperature,
            max_staleness=(
                TRL_STALENESS if settings.max_staleness is None else settings.max_staleness
            ),
            queue_maxsize=queue_maxsize,
            stop_seconds=stop_seconds,
        )
        self._engine = engine
        self.policy = TokenPolicy(  # with spec, tasks and store also used by RolloutProcesses
            engine,
            renderer,
            sampling=Sampling(temperature=temperature),
            max_tokens=max_tokens,
            timeout=turn_timeout,
        )
        self.spec = spec
        self.tasks = _repeated(tasks, settings.seed if shuffle else None)
        self.store = store
        self._annotators = as_annotators(annotators)
        self._runner: Runner | None = None
        self._paused = False

    @classmethod
    def for_vllm(
        cls,
        args: Any,
        spec: EnvSpec,
        tasks: Iterable[Task] | AsyncIterator[Task],
        *,
        model: str,
        tokenizer: Any,
        store: Store | str | os.PathLike[str],
        stream: bool = False,
        renderer: Renderer | None = None,
        versions: VersionClock | None = None,
        settings: RunSettings | None = None,
        **options: Any,
    ) -> Self:
        """Return a worker for the vLLM server and the settings of an ``AsyncGRPOConfig``.

        Args:
            args: the trainer's ``AsyncGRPOConfig``.
            spec: the environment.
            tasks: see the class.
            model: the model's name on the server.
            tokenizer: with a chat template.
            store: see the class.
            stream: see :class:`trajgym.rollout.VLLMEngine`.
            renderer: used instead of the tokenizer's chat template.
            versions: a shared clock.
            settings: how sessions are run; by default taken from ``args``.
            **options: further arguments of the class, and settings by name; they override ``args``.

        Raises:
            InvalidInput: ``args`` changes the sampling distribution (``top_p`` and others).
        """
        check_distribution(args)
        clock = versions or VersionClock()
        run, more = split_settings(args, settings, options)
        more = {
            "temperature": args.temperature,
            "max_tokens": args.max_completion_length,
            "turn_timeout": float(args.request_timeout),
            "queue_maxsize": args.queue_maxsize,
            "token_budget": args.token_budget if (args.token_budget or 0) > 0 else None,
        } | more
        engine = VLLMEngine(
            args.vllm_server_base_url,
            model,
            versions=clock,
            stream=stream,
            timeout=more["turn_timeout"],
        )
        if renderer is None:
            renderer = TemplateRenderer(tokenizer, template_options=args.chat_template_kwargs)
        return cls(spec, tasks, engine, renderer, store, versions=clock, settings=run, **more)

    @property
    def tally(self) -> Tally:
        """Counts of sessions up to now."""
        return self._build.tally

    @property
    def handler(self) -> SampleHandler:
        """What makes samples of a group elsewhere than in this worker's thread."""
        return SampleHandler(self._build, self._annotators)

    # The thread -----------------------------------------------------------------------------

    async def _work(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self.policy.close)
        if self._annotators is not None:
            stack.push_async_callback(self._annotators.close)
        if isinstance(self._engine, VLLMEngine):
            await self._engine.check()
        store = await self._opened(stack)
        runner = Runner(self.spec, self.tasks, self.policy, store=store, settings=self.settings)
        self._runner = runner  # before it is entered: updates must not be lost meanwhile
        self._set_version()
        self._set_paused()
        await stack.enter_async_context(runner)
        if self._annotators is None:
            async for sealed in runner:
                await self._hand_over(sealed)
        else:
            await self._annotate(runner, store, self._annotators)

    async def _opened(self, stack: AsyncExitStack) -> Store:
        store = self.store
        if not isinstance(store, Store):
            store = await asyncio.to_thread(Store, store)
            await stack.enter_async_context(store)
        if await asyncio.to_thread(has_sessions, store):
            raise InvalidInput(
                f"{store.path} already contains sessions; policy versions start at 0 in each "
                "training process, so use a separate directory for each",
            )
        await store.set_meta("env", json.dumps(self.spec.to_json(), sort_keys=True))
        return store

    async def _annotate(self, runner: Runner, store: Store, annotators: Annotators) -> None:
        """Annotate several groups concurrently; pass each on when it is done, one at a time."""
        room, turn = asyncio.Semaphore(_ANNOTATED), asyncio.Lock()

        async def one(sealed: SealedGroup) -> None:
            try:
                await annotators(sealed, store)
                async with turn:
                    await self._hand_over(sealed)
            finally:
                room.release()

        with first_error():
            async with asyncio.TaskGroup() as tasks:
                async for sealed in runner:
                    # No deadline here: annotators have one for each group, and stop() cancels this.
                    await room.acquire()
                    tasks.create_task(one(sealed))

    async def _hand_over(self, sealed: SealedGroup) -> None:
        await self._put_all(await asyncio.to_thread(self._build, sealed))

    # Calls from the trainer's thread ----------------------------------------------------------

    def pause(self) -> None:
        """Start no turn, and stop the sessions' clocks, until :meth:`resume`."""
        self._paused = True
        self._in_loop(self._set_paused)

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        self._paused = False
        self._in_loop(self._set_paused)

    def _set_version(self) -> None:
        if self._runner is not None:
            self._runner.set_version(self.versions.version)

    def _set_paused(self) -> None:
        if self._runner is None:
            return
        if self._paused:
            self._runner.pause()
        else:
            self._runner.resume()


def _repeated(
    tasks: Iterable[Task] | AsyncIterator[Task], seed: int | None
) -> Iterable[Task] | AsyncIterator[Task]:
    if not isinstance(tasks, Sequence):
        return tasks
    if not tasks:
        raise InvalidInput("there are no tasks")
    return _for_ever(list(tasks), seed)


def _for_ever(tasks: list[Task], seed: int | None) -> Iterator[Task]:
    chance = None if seed is None else random.Random(seed)  # noqa: S311 - an order, not a secret
    while True:
        if chance is not None:
            chance.shuffle(tasks)
        yield from tasks


def _check_engine(engine: TokenEngine, temperature: float, allowed: Collection[str]) -> None:
    if not temperature > 0:
        raise InvalidInput(f"temperature is {temperature}; it must be above 0 for training")
    if engine.synthetic and "synthetic" not in allowed:
        raise InvalidInput(
            f"engine {engine.name!r} makes up ids and log-probs, which must not be trained: in a "
            "test, pass allow=['synthetic']",
        )
    if "raw-logprobs" in allowed:
        return
    same = engine.logprob_mode == "raw" and temperature == 1.0
    if engine.logprob_mode != "processed" and not same:
        raise InvalidInput(
            f"engine {engine.name!r} reports {engine.logprob_mode} log-probs at temperature "
            f"{temperature:g}, but the trainer divides by the temperature: start vLLM with "
            "--logprobs-mode processed_logprobs",
        )

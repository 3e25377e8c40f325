"""The rollout worker of TRL's asynchronous GRPO trainer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import random
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters._rollouts import has_sessions
from trajgym.adapters._trl_buffer import SampleBuffer
from trajgym.adapters._trl_errors import need_trl
from trajgym.adapters._trl_harvest import Harvester, Tally
from trajgym.adapters._trl_health import Health
from trajgym.adapters._trl_settings import check_distribution, sessions_at_once
from trajgym.adapters._trl_versions import VersionClock, watch
from trajgym.rewards import GRPO
from trajgym.rollout import Runner, TemplateRenderer, TokenPolicy, VLLMEngine
from trajgym.trajectory import InvalidInput, Sampling, Store

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from trajgym.adapters._trl_samples import Form
    from trajgym.envs import EnvSpec
    from trajgym.rewards import Deriver
    from trajgym.rollout import Renderer, SealedGroup, TokenEngine
    from trajgym.trajectory import Task

__all__ = ["RolloutWorker"]

_log = logging.getLogger(__name__)
_METRICS = 4096
"""Groups whose metrics can wait for a trainer that logs seldom; later ones are not logged."""
_BEAT = 0.5
"""Seconds between signs of life of the event loop."""


class RolloutWorker:
    """Runs sessions beside TRL's ``AsyncGRPOTrainer`` and hands it their rows.

    ::

        worker = RolloutWorker.for_vllm(args, spec, tasks, model=name, tokenizer=tok, store="run")
        trainer = AsyncGRPOTrainer(model=name, args=args, train_dataset=..., rollout_worker=worker)
        worker.attach(trainer)
        trainer.train()

    It has a thread and an event loop of its own, and drives :class:`trajgym.rollout.Runner` there.
    Every session is in the store before its rows are in the queue. A full queue holds the sessions
    back. Failed sessions give no samples and don't count in their group.

    Args:
        spec: the environment.
        tasks: a sequence is repeated for ever, shuffled anew each time; anything else is read once.
        engine: samples ids; its log-probs must be those that the trainer computes, after
            temperature and over all tokens. Closed with the worker.
        renderer: messages <-> ids, for the engine's model.
        store: a run directory, or an open store, without sessions. Policy versions begin anew with
            each training process, so each writes a run of its own.
        versions: what the engine asks for versions, if it has to ask (:class:`VLLMEngine`).
        temperature: of sampling; the trainer's must be the same.
        max_tokens: most response tokens of a turn.
        turn_timeout: seconds until an engine that doesn't answer counts as unavailable.
        deriver: gives the advantages; ``GRPO()`` by default.
        form: how rows become samples, see :func:`rollout_samples`. The default trains each turn
            with its own advantage where they differ.
        skip_flat: leave out groups all of whose advantages are 0; they train nothing but count in
            the mean over tokens.
        samples: sessions of a group.
        concurrency: sessions at once.
        max_staleness: how many versions a sample may be behind; older ones are left out.
        queue_maxsize: samples that wait for the trainer at most.
        shuffle: whether a repeated sequence of tasks is shuffled.
        seed: for shuffling and everything else random.
        stop_seconds: deadline of :meth:`stop`.
        **runner_options: more settings of :class:`trajgym.rollout.Runner`: ``budgets``,
            ``retries``, ``deadline``, ``labels``, ``snapshot_every``.

    Raises:
        InvalidInput: settings that would train on wrong numbers.
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
        deriver: Deriver | None = None,
        form: Form = "auto",
        skip_flat: bool = False,
        samples: int = 8,
        concurrency: int = 64,
        max_staleness: int = 4,
        queue_maxsize: int = 1024,
        shuffle: bool = True,
        seed: int = 0,
        stop_seconds: float = 180.0,
        **runner_options: Any,
    ) -> None:
        need_trl()
        _check_engine(engine, temperature)
        if engine.synthetic:
            _log.warning("engine %r makes its log-probs up: train nothing real", engine.name)
        self.versions = versions or VersionClock()
        self.rollout_buffer = SampleBuffer(
            queue_maxsize, lambda: self.versions.version, max_staleness, self._wake
        )
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue(_METRICS)
        self.updates: list[tuple[int, float]] = []
        """Versions and the Unix times (s) at which the trainer announced them."""
        self.temperature = temperature
        self.max_staleness = max_staleness
        self._engine = engine
        self._policy = TokenPolicy(
            engine,
            renderer,
            sampling=Sampling(temperature=temperature),
            max_tokens=max_tokens,
            timeout=turn_timeout,
        )
        self._spec = spec
        self._tasks = _repeated(tasks, seed if shuffle else None)
        self._store = store
        self._harvest = Harvester(deriver or GRPO(), form, skip_flat=skip_flat)
        self._stop_seconds = stop_seconds
        self._runner_options = {
            "samples": samples,
            "concurrency": concurrency,
            "max_staleness": max_staleness,
            "seed": seed,
            **runner_options,
        }
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main_task: asyncio.Task[None] | None = None
        self._runner: Runner | None = None
        self._space = asyncio.Event()
        self._ready = threading.Event()
        self._stopping = False
        self._exhausted = False
        self._error: BaseException | None = None
        self._beat_at = self._sample_at = time.monotonic()

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
        **options: Any,
    ) -> Self:
        """Return a worker for the vLLM server and the settings of an ``AsyncGRPOConfig``.

        Args:
            args: the trainer's ``AsyncGRPOConfig``.
            spec: the environment.
            tasks: see the class.
            model: name under which the server knows the model.
            tokenizer: with a chat template.
            store: see the class.
            stream: see :class:`trajgym.rollout.VLLMEngine`.
            renderer: instead of the tokenizer's template.
            versions: a clock that others share.
            **options: more arguments of the class; they go before what ``args`` says.

        Raises:
            InvalidInput: ``args`` cuts or bends the distribution (``top_p`` and the like).
        """
        check_distribution(args)
        clock = versions or VersionClock()
        settings = {
            "temperature": args.temperature,
            "max_tokens": args.max_completion_length,
            "turn_timeout": float(args.request_timeout),
            "samples": args.num_generations,
            "concurrency": sessions_at_once(args),
            "max_staleness": args.max_staleness,
            "queue_maxsize": args.queue_maxsize,
            "seed": args.seed,
        } | options
        engine = VLLMEngine(
            args.vllm_server_base_url,
            model,
            versions=clock,
            stream=stream,
            timeout=settings["turn_timeout"],
        )
        if renderer is None:
            renderer = TemplateRenderer(tokenizer, template_options=args.chat_template_kwargs)
        return cls(spec, tasks, engine, renderer, store, versions=clock, **settings)

    def attach(self, trainer: Any) -> None:
        """Check that the trainer fits, and learn from it when weight updates begin.

        Without this the worker works too, but it can't know when an update begins: tokens then
        carry a range of two versions, and the seconds of an update count as the agents'.

        Args:
            trainer: an ``AsyncGRPOTrainer`` that has this worker.

        Raises:
            InvalidInput: another temperature or bound of staleness, or LoRA adapters that are
                served under names of their own.
        """
        watch(self, trainer)

    @property
    def tally(self) -> Tally:
        """What became of the sessions so far."""
        return self._harvest.tally

    # TRL's RolloutWorkerProtocol ------------------------------------------------------------

    def start(self) -> None:
        """Begin to run sessions.

        Raises:
            RolloutFailed: it was started before.
        """
        if self._thread is not None:
            raise RolloutFailed("a rollout worker can be started once; make another one")
        self._beat_at = self._sample_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="trajgym-trl", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cancel the sessions under way, close everything, and end the thread. Idempotent.

        Raises:
            RolloutFailed: something did not end in time.
        """
        self._stopping = True
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        self._ready.wait(self._stop_seconds)
        if self._main_task is not None:
            self._in_loop(self._main_task.cancel)
        thread.join(self._stop_seconds)
        if thread.is_alive():
            raise RolloutFailed(
                f"the rollout worker did not stop within {self._stop_seconds:g} s: an environment "
                "that does not close holds it up",
            )

    def update_model_version(self, model_version: int) -> None:
        """Learn that the server holds these weights now."""
        self.versions.announce(model_version)
        self.updates.append((model_version, time.time()))
        self._in_loop(self._set_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise if no more samples can be expected.

        Args:
            stale_after_s: seconds without a sign of life, or in which sealed groups gave nothing.

        Raises:
            RolloutFailed: the worker ended, hangs, or all its sessions fail.
        """
        try:
            self.health.check(stale_after_s)
        except RolloutFailed as failed:
            raise failed from self._error

    @property
    def health(self) -> Health:
        """The signs of life that :meth:`check_health` looks at."""
        return Health(
            running=self._thread is not None and self._thread.is_alive(),
            exhausted=self._exhausted,
            error="" if self._error is None else repr(self._error),
            beat_at=self._beat_at,
            sample_at=self._sample_at,
            tally=self.tally,
        )

    # The thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            self._exhausted = not self._stopping
        except BaseException as error:  # noqa: BLE001 - boundary: kept for check_health
            _log.exception("the rollout worker failed")
            self._error = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._main_task = asyncio.current_task()
        self._ready.set()
        if self._stopping:
            return
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._policy.close)
            beat = asyncio.create_task(self._live())
            stack.callback(beat.cancel)
            if isinstance(self._engine, VLLMEngine):
                await self._engine.check()
            store = await self._opened(stack)
            runner = Runner(
                self._spec, self._tasks, self._policy, store=store, **self._runner_options
            )
            runner.set_version(self.versions.version)
            self._runner = await stack.enter_async_context(runner)
            async for sealed in runner:
                await self._hand_over(sealed)
        self._exhausted = True

    async def _live(self) -> None:
        while True:
            self._beat_at = time.monotonic()
            await asyncio.sleep(_BEAT)

    async def _opened(self, stack: AsyncExitStack) -> Store:
        store = self._store
        if not isinstance(store, Store):
            store = await asyncio.to_thread(Store, store)
            await stack.enter_async_context(store)
        if await asyncio.to_thread(has_sessions, store):
            raise InvalidInput(
                f"{store.path}: holds sessions already; policy versions begin anew with each "
                "training process, so give each a directory of its own",
            )
        await store.set_meta("env", json.dumps(self._spec.to_json(), sort_keys=True))
        return store

    async def _hand_over(self, sealed: SealedGroup) -> None:
        harvest = await asyncio.to_thread(self._harvest, sealed)
        waited = 0.0
        for session, sample in harvest.samples:
            sample.enqueued_at = time.time()
            waited += await self._put((session, sample))
        if harvest.samples:
            self._sample_at = time.monotonic()
        more = {
            "rollout/backpressure_s": waited,
            "trajgym/stale_samples": float(self.rollout_buffer.stale),
        }
        with contextlib.suppress(queue.Full):
            self.metrics_queue.put_nowait(harvest.metrics | more)

    async def _put(self, pair: tuple[str, Any]) -> float:
        """Put a pair into the queue; return the seconds that there was no place."""
        begun: float | None = None
        while True:
            self._space.clear()
            try:
                self.rollout_buffer.put_nowait(pair)
            except queue.Full:
                begun = begun or time.monotonic()
                # No deadline: a trainer may take its time, and stop() cancels this.
                await self._space.wait()
            else:
                return 0.0 if begun is None else time.monotonic() - begun

    # Calls from the trainer's thread ----------------------------------------------------------

    def _in_loop(self, function: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(function)

    def _wake(self) -> None:
        self._in_loop(self._space.set)

    def pause(self) -> None:
        """Let no turn begin, and stop the agents' clocks, until :meth:`resume`."""
        if self._runner is not None:
            self._in_loop(self._runner.pause)

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        if self._runner is not None:
            self._in_loop(self._runner.resume)

    def _set_version(self) -> None:
        if self._runner is not None:
            self._runner.set_version(self.versions.version)


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


def _check_engine(engine: TokenEngine, temperature: float) -> None:
    if not temperature > 0:
        raise InvalidInput(f"temperature is {temperature}; a policy that is trained must sample")
    same = engine.logprob_mode == "raw" and temperature == 1.0
    if engine.logprob_mode != "processed" and not same:
        raise InvalidInput(
            f"engine {engine.name!r} reports {engine.logprob_mode} log-probs at temperature "
            f"{temperature:g}, and the trainer divides by the temperature: start vLLM with "
            "--logprobs-mode processed_logprobs",
        )

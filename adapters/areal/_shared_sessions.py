"""Sessions of AReaL's episodes, with one runner for each event loop and store."""

from __future__ import annotations

import asyncio
import itertools
import os
import platform
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters._rollouts import Rollouts
from trajgym.adapters.areal._engine import ArealEngine, is_paused
from trajgym.rollout import TokenPolicy
from trajgym.trajectory import InvalidInput, Sampling

if TYPE_CHECKING:
    from trajgym.adapters._annotating import Annotators
    from trajgym.envs import EnvSpec
    from trajgym.rollout import RunSettings, SealedGroup
    from trajgym.rollout.rendering import Renderer
    from trajgym.trajectory import Task

__all__ = ["Sessions", "SharedSettings", "sessions_for"]

_POLL = 0.1
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSettings:
    """How sessions are run; workflows with equal settings share a runner.

    Args:
        spec: the environment.
        store: directory for the runs.
        run: how sessions are run.
        gconfig: AReaL's ``GenerationHyperparameters``.
        as_admitted: whether the number of concurrent sessions follows AReaL's own bound instead of
            the settings.
        turn_timeout: deadline of one policy call (s).
        renderer: converts messages to ids and back.
        annotators: annotate each group before its values are derived.
    """

    spec: EnvSpec
    store: str
    run: RunSettings
    gconfig: Any
    as_admitted: bool
    turn_timeout: float
    renderer: Renderer = field(compare=False)
    annotators: Annotators | None = field(default=None, compare=False)


class Sessions:
    """Runs groups of sessions on AReaL's event loop, with its pauses and versions.

    Args:
        settings: how sessions are run.
        engine: AReaL's ``InferenceEngine``.
    """

    def __init__(self, settings: SharedSettings, engine: Any) -> None:
        self.settings = settings
        self._engine = engine
        policy = TokenPolicy(
            ArealEngine(
                engine, settings.gconfig, timeout=settings.turn_timeout, on_answer=self._set_version
            ),
            settings.renderer,
            sampling=Sampling(temperature=settings.gconfig.temperature),
            max_tokens=settings.gconfig.max_new_tokens,
            timeout=settings.run.deadline,
        )
        began = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = f"{began}-{platform.node() or 'host'}-{os.getpid()}-{next(_numbers)}"
        run = settings.run
        if settings.as_admitted:
            run = replace(run, concurrency=_admitted(engine) * run.samples)
        self.path = Path(settings.store) / name
        self._rollouts = Rollouts(settings.spec, policy, self.path, run, settings.annotators)
        self._follower: asyncio.Task[None] | None = None

    async def play(self, task: Task) -> SealedGroup:
        """Run a task's sessions and return the sealed group.

        Raises:
            RolloutFailed: the runner ended, or AReaL's engine can't be polled.
        """
        if self._follower is None:
            self._follower = asyncio.create_task(self._follow(), name="trajgym-areal-follower")
        if self._follower.done():
            error = None if self._follower.cancelled() else self._follower.exception()
            raise RolloutFailed(f"AReaL's engine can't be polled: {error!r}") from error
        return (await self._rollouts.play([task]))[0]

    async def close(self) -> None:
        """Cancel running sessions and close everything. Idempotent."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
            await asyncio.wait([follower])
        await self._rollouts.close()

    def _set_version(self, version: int) -> None:
        runner = self._rollouts.runner
        if runner is not None and version > runner.version:
            runner.set_version(version)

    async def _follow(self) -> None:
        while True:
            self._set_version(self._engine.get_version())
            runner = self._rollouts.runner
            if runner is not None:
                if is_paused(self._engine):
                    runner.pause()
                else:
                    runner.resume()
            await asyncio.sleep(_POLL)


_open: dict[tuple[asyncio.AbstractEventLoop, str], Sessions] = {}


def sessions_for(settings: SharedSettings, engine: Any) -> Sessions:
    """Return the sessions of the running event loop, which are closed with the loop.

    AReaL creates a workflow for every task if it is named by a string, so the runner and its store
    are kept by event loop.

    Raises:
        InvalidInput: another workflow of this loop uses the same store with other settings.
    """
    from areal.infra.utils.concurrent import register_loop_cleanup

    loop = asyncio.get_running_loop()
    key = (loop, settings.store)
    found = _open.get(key)
    if found is None:
        found = _open[key] = Sessions(settings, engine)

        async def close() -> None:
            await _open.pop(key).close()

        register_loop_cleanup(close)
    elif found.settings != settings:
        raise InvalidInput(
            f"store {settings.store}: another workflow of this engine writes to it with other "
            "settings; use a separate store for each",
        )
    return found


def _admitted(engine: Any) -> int:
    """Return how many episodes AReaL runs concurrently."""
    config = getattr(engine, "config", None)
    most = getattr(config, "max_concurrent_rollouts", None)
    return int(most or getattr(config, "consumer_batch_size", None) or 64)

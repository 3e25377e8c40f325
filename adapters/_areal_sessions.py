"""Sessions for AReaL's episodes: one runner for each event loop and store."""

from __future__ import annotations

import asyncio
import itertools
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.adapters._areal_engine import ArealEngine, is_paused
from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters._rollouts import Rollouts
from trajgym.rollout import TokenPolicy
from trajgym.trajectory import InvalidInput, Sampling

if TYPE_CHECKING:
    from trajgym.envs import EnvSpec
    from trajgym.rollout import Renderer, SealedGroup
    from trajgym.trajectory import Task

__all__ = ["Plan", "Sessions", "sessions_for"]

_POLL = 0.1
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How sessions are run; equal plans share a runner.

    Args:
        spec: the environment.
        store: folder for the runs.
        samples: sessions of each task.
        gconfig: AReaL's ``GenerationHyperparameters``.
        concurrency: sessions at once; None takes what AReaL admits.
        turn_timeout: seconds of one policy call.
        session_timeout: seconds of one session.
        runner_options: more settings of the runner.
        renderer: messages <-> ids.
    """

    spec: EnvSpec
    store: str
    samples: int
    gconfig: Any
    concurrency: int | None
    turn_timeout: float
    session_timeout: float
    runner_options: dict[str, Any]
    renderer: Renderer = field(compare=False)


class Sessions:
    """Runs groups of sessions on AReaL's event loop, and follows its pauses and versions.

    Args:
        plan: how.
        engine: AReaL's ``InferenceEngine``.
    """

    def __init__(self, plan: Plan, engine: Any) -> None:
        self.plan = plan
        self._engine = engine
        policy = TokenPolicy(
            ArealEngine(
                engine, plan.gconfig, timeout=plan.turn_timeout, on_answer=self._set_version
            ),
            plan.renderer,
            sampling=Sampling(temperature=plan.gconfig.temperature),
            max_tokens=plan.gconfig.max_new_tokens,
            timeout=plan.session_timeout,
        )
        began = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = f"{began}-{platform.node() or 'host'}-{os.getpid()}-{next(_numbers)}"
        options = {"deadline": plan.session_timeout, **plan.runner_options}
        options["concurrency"] = plan.concurrency or _admitted(engine) * plan.samples
        self.path = Path(plan.store) / name
        self._rollouts = Rollouts(plan.spec, policy, self.path, plan.samples, options)
        self._follower: asyncio.Task[None] | None = None

    async def play(self, task: Task) -> SealedGroup:
        """Return a task's sealed group.

        Raises:
            RolloutFailed: the runner ended, or AReaL's engine can't be followed.
        """
        if self._follower is None:
            self._follower = asyncio.create_task(self._follow(), name="trajgym-areal-follower")
        if self._follower.done():
            error = None if self._follower.cancelled() else self._follower.exception()
            raise RolloutFailed(f"AReaL's engine can't be followed: {error!r}") from error
        return (await self._rollouts.play([task]))[0]

    async def close(self) -> None:
        """Cancel the sessions under way and close everything. Idempotent."""
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


def sessions_for(plan: Plan, engine: Any) -> Sessions:
    """Return the sessions of the running loop; they are closed when AReaL closes it.

    AReaL makes a workflow anew for every task where it is named by a string: what must outlive
    one, a runner and its store, hangs on the loop.

    Raises:
        InvalidInput: two workflows of one loop write the same store with other settings.
    """
    from areal.infra.utils.concurrent import register_loop_cleanup

    loop = asyncio.get_running_loop()
    key = (loop, plan.store)
    found = _open.get(key)
    if found is None:
        found = _open[key] = Sessions(plan, engine)

        async def close() -> None:
            await _open.pop(key).close()

        register_loop_cleanup(close)
    elif found.plan != plan:
        raise InvalidInput(
            f"store {plan.store}: another workflow of this engine writes there with other "
            "settings; give each a store of its own",
        )
    return found


def _admitted(engine: Any) -> int:
    """Return how many episodes AReaL runs at once."""
    config = getattr(engine, "config", None)
    most = getattr(config, "max_concurrent_rollouts", None)
    return int(most or getattr(config, "consumer_batch_size", None) or 64)

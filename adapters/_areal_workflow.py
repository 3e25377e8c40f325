"""AReaL's rollout workflow over any environment. Importing this imports AReaL."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from areal.api import RolloutWorkflow
from areal.api.cli_args import GenerationHyperparameters
from areal.infra import workflow_context
from areal.utils import stats_tracker

from trajgym.adapters._areal_engine import check_distribution
from trajgym.adapters._areal_errors import areal_major, need_areal
from trajgym.adapters._areal_sessions import Plan, sessions_for
from trajgym.adapters._areal_tasks import as_deriver, as_spec, read_task
from trajgym.adapters._areal_tensors import areal_tensors
from trajgym.adapters._groups import group_rows
from trajgym.envs import Budgets
from trajgym.rollout import renderer_for
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.adapters._groups import GroupRows
    from trajgym.envs import EnvSpec
    from trajgym.rewards import Deriver
    from trajgym.rollout import Renderer
    from trajgym.trajectory import Task

__all__ = ["TrajgymWorkflow"]

need_areal()
_log = logging.getLogger(__name__)
_GRACE = 120.0
"""Seconds for recording and deriving, on top of what a session may take."""


class TrajgymWorkflow(RolloutWorkflow):  # type: ignore[misc]
    """Runs one group of sessions for each element of the data loader.

    An episode of AReaL is a whole group: its values are derived once all its sessions have ended,
    and all their rows come back as one trajectory. Leave AReaL's own grouping off
    (``gconfig.n_samples: 1`` in its configuration).

    No episode hangs: every turn and every session has a deadline, and a group without rows gives
    None, which frees its capacity. Sessions run on AReaL's event loop with the same runner that
    collects data sets; each process and engine writes a run of its own below ``store``.

    Arguments may be plain data, so that AReaL can send them to other processes.

    Args:
        env: the environment: a spec, its name, or ``{"id": ..., "config": {...}}``.
        tokenizer: a tokenizer with a chat template, or the path to load one from.
        store: folder for the runs.
        samples: sessions of a group.
        gconfig: how to sample; ``max_tokens`` bounds prompt and response together. Stop ids come
            from the renderer.
        deriver: gives advantages or rewards; its name, or a name with settings as
            ``{"name": ..., "settings": {...}}``.
        dense: see :func:`trajgym.adapters.areal.areal_tensors`.
        turn_ids: send turn numbers; None does so where AReaL is 2 or newer.
        renderer: instead of the one for the tokenizer.
        concurrency: sessions at once; by default as many as AReaL admits episodes, times
            ``samples``, so that no group waits for another.
        turn_timeout: seconds until a policy call without an answer fails its session; pauses of
            the engine don't count.
        session_timeout: wall-clock seconds of one session, pauses included; then it fails.
        group_timeout: seconds until a group is given up, which its sessions' deadlines should make
            needless: an environment that can't be cancelled may. By default what all of them add
            up to.
        skip_flat: give None for groups from which nothing can be learned.
        evaluation: allow settings that a trained policy must not sample with, such as ``greedy``.
        **runner_options: more settings of :class:`trajgym.rollout.Runner`, such as ``retries``,
            ``budgets`` (also as a dict) or ``max_staleness``.

    Raises:
        InvalidInput: settings that don't fit a policy that is trained.
        UnknownEnv: there is no such environment.
        UnknownDeriver: there is no such deriver.
        MissingExtra: AReaL is not installed.
    """

    def __init__(
        self,
        env: EnvSpec | str | Mapping[str, Any],
        tokenizer: Any,
        store: str | os.PathLike[str],
        *,
        samples: int = 8,
        gconfig: Any = None,
        deriver: Deriver | str | Mapping[str, Any] = "grpo",
        dense: bool | None = None,
        turn_ids: bool | None = None,
        renderer: Renderer | None = None,
        concurrency: int | None = None,
        turn_timeout: float = 600.0,
        session_timeout: float = 3600.0,
        group_timeout: float | None = None,
        skip_flat: bool = False,
        evaluation: bool = False,
        **runner_options: Any,
    ) -> None:
        chosen = _as_gconfig(gconfig)
        if not evaluation:
            check_distribution(chosen)
        if isinstance(budgets := runner_options.get("budgets"), dict):
            runner_options["budgets"] = Budgets.from_json(budgets)
        for name, value in (("turn_timeout", turn_timeout), ("session_timeout", session_timeout)):
            if not value > 0:
                raise InvalidInput(f"{name} is {value}; AReaL needs a deadline for every episode")
        self._plan = Plan(
            spec=as_spec(env),
            store=os.path.abspath(store),  # noqa: PTH100 - a path need not exist yet
            samples=samples,
            gconfig=chosen,
            concurrency=concurrency,
            turn_timeout=turn_timeout,
            session_timeout=session_timeout,
            runner_options=runner_options,
            renderer=renderer or _renderer(tokenizer),
        )
        self._deriver = as_deriver(deriver)
        self._dense = dense
        self._turn_ids = areal_major() > 1 if turn_ids is None else turn_ids
        self._skip_flat = skip_flat
        self._group_seconds = group_timeout or self._longest()

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        """Run a task's group; return its rows as tensors ``[B, T]``, or None if it has none.

        Args:
            engine: AReaL's ``InferenceEngine``.
            data: an element of :func:`trajgym.adapters.areal.task_dataset`.
        """
        try:
            task = read_task(data)
            async with asyncio.timeout(self._group_seconds):
                return await self._episode(engine, task)
        except TimeoutError:
            _log.error(
                "group of %s: given up after %g s; the sessions that hold it up keep their places",
                str(data)[:80],
                self._group_seconds,
            )
        except Exception:  # noqa: BLE001 - boundary: logged; AReaL counts None as rejected
            _log.exception("group of %s: no rows", str(data)[:80])
        return None

    def _longest(self) -> float:
        """Return how many seconds a group can take if every deadline is used up.

        The rivals of a round of an expansion run side by side.
        """
        plan = self._plan
        kind = plan.spec.resolve()
        tries = 1 + int(plan.runner_options.get("retries", 0))
        expansion = plan.runner_options.get("expansion")
        tries += 0 if expansion is None else int(expansion.rounds)
        around = kind.reset_seconds + kind.verify_seconds + kind.close_seconds
        return tries * (plan.session_timeout + around) + _GRACE

    async def _episode(self, engine: Any, task: Task) -> dict[str, Any] | None:
        sealed = await sessions_for(self._plan, engine).play(task)
        found = await asyncio.to_thread(group_rows, sealed, self._deriver)
        _report(found)
        if missing := found.left + found.dropped:
            _log.warning("group of task %s: left out: %s", task.id, dict(missing))
        if not found.sessions or (self._skip_flat and found.flat):
            return None
        tensors: dict[str, Any] = await asyncio.to_thread(
            areal_tensors, found.rows, dense=self._dense, turn_ids=self._turn_ids
        )
        return tensors


def _report(found: GroupRows) -> None:
    """Give AReaL's tracker the scores, turns and failures of a group."""
    tracker = stats_tracker.get(workflow_context.stat_scope())
    for tree, rows in found.sessions:
        outcome = tree.attempts[0].outcome
        tracker.scalar(num_turns=len(tree.turns), num_rows=len(rows))
        if outcome is not None:
            tracker.scalar(reward=outcome.score, solved=float(outcome.passed))
    tracker.scalar(left_group=float(found.left.total()), dropped=float(found.dropped.total()))


def _as_gconfig(gconfig: Any) -> Any:
    if gconfig is None:
        return GenerationHyperparameters()
    if isinstance(gconfig, GenerationHyperparameters):
        return gconfig
    return GenerationHyperparameters(**gconfig)


def _renderer(tokenizer: Any) -> Renderer:
    if isinstance(tokenizer, str | os.PathLike):
        return _renderer_at(os.fspath(tokenizer))
    return renderer_for(tokenizer)


@cache  # AReaL makes a workflow for every task
def _renderer_at(path: str) -> Renderer:
    from transformers import AutoTokenizer

    return renderer_for(AutoTokenizer.from_pretrained(path))

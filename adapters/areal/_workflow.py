"""AReaL's rollout workflow for any environment. Importing this module imports AReaL."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from functools import cache
from typing import TYPE_CHECKING, Any, Unpack, get_args

from areal.api import RolloutWorkflow
from areal.api.cli_args import GenerationHyperparameters
from areal.infra import workflow_context
from areal.utils import stats_tracker

from trajgym.adapters._annotating import as_annotators
from trajgym.adapters._gate import Allowance
from trajgym.adapters._group_rows import RowBuilder
from trajgym.adapters.areal._engine import check_distribution
from trajgym.adapters.areal._errors import areal_major, need_areal
from trajgym.adapters.areal._give_up import watch_for
from trajgym.adapters.areal._shared_sessions import SharedSettings, sessions_for
from trajgym.adapters.areal._tasks import as_spec, read_task
from trajgym.adapters.areal._tensors import areal_tensors
from trajgym.rollout import RunSettings, renderer_for
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trajgym.adapters._annotating import Annotators, AnnotatorSpec
    from trajgym.adapters._group_rows import GroupRows, MissingRule
    from trajgym.envs import EnvSpec
    from trajgym.rewards import DeriverSpec
    from trajgym.rollout import RunKeywords
    from trajgym.rollout.rendering import Renderer
    from trajgym.trajectory import Task

__all__ = ["TrajgymWorkflow"]

need_areal()
_log = logging.getLogger(__name__)
_DEFAULTS = RunSettings(samples=8, deadline=3600.0)
_GRACE = 120.0
"""Seconds for recording and deriving, added to the sessions' deadlines."""


class TrajgymWorkflow(RolloutWorkflow):  # type: ignore[misc]
    """Runs one group of sessions for each element of the data loader.

    An episode of AReaL is a whole group: its values are derived once all its sessions have ended,
    and the rows of all sessions are returned as one trajectory. AReaL's own grouping must be off
    (``gconfig.n_samples: 1`` in its configuration).

    Every turn, session and group has a deadline, and a group without rows returns None, which frees
    its capacity. Sessions run on AReaL's event loop with the same runner that collects data sets;
    each process and engine writes its own run below ``store``.

    Arguments can be plain data, so that AReaL can send them to other processes.

    Args:
        env: the environment: a spec, its id, or ``{"id": ..., "config": {...}}``.
        tokenizer: a tokenizer with a chat template, or a path to load one from.
        store: directory for the runs.
        settings: how sessions are run, an object or a mapping; by default 8 samples, a deadline of
            an hour, and ``samples`` concurrent sessions for each episode that AReaL admits, so that
            no group waits for another.
        gconfig: sampling parameters: the ``gconfig`` of the trainer's configuration, as an object
            or a mapping (``vars(config.gconfig)``). ``max_tokens`` bounds prompt and response
            together; ``n_samples`` must be 1. Stop ids come from the renderer. None takes AReaL's
            defaults.
        deriver: returns advantages or rewards; an object or plain data, see
            :func:`trajgym.rewards.as_deriver`.
        annotators: annotate each group before its values are derived; as plain data
            ``"module:function"`` or ``{"make": "module:function", "settings": {...}}``.
        missing_signals: how to treat sessions without the signals that the deriver reads.
        allow: kinds of sessions that are accepted nevertheless; see
            :class:`trajgym.adapters.Gate`.
        dense: see :func:`trajgym.adapters.areal.areal_tensors`.
        turn_ids: whether to add turn numbers; None adds them if AReaL is 2 or newer.
        renderer: used instead of the tokenizer's.
        turn_timeout: seconds after which a policy call without a response fails its session,
            excluding pauses of the engine.
        session_timeout: another name for the setting ``deadline`` (s), which includes pauses.
        group_timeout: deadline of a group (s), for environments that can't be cancelled; by default
            the sum of all deadlines of its sessions.
        skip_flat: return None for groups whose advantages or rewards are all 0.
        give_up: number of consecutive groups without a row that ends the training with an error;
            AReaL itself would sample endlessly.
        evaluation: accept sampling parameters that don't fit training, such as ``greedy``.
        **overrides: settings by name: ``samples``, ``concurrency``, ``budgets``, ``retries``, ...

    Raises:
        InvalidInput: a setting is unknown or invalid, or does not fit training.
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
        settings: RunSettings | Mapping[str, Any] | None = None,
        gconfig: Any = None,
        deriver: DeriverSpec = "grpo",
        annotators: Annotators | Sequence[AnnotatorSpec] | None = None,
        missing_signals: MissingRule = "error",
        allow: Collection[str] = (),
        dense: bool | None = None,
        turn_ids: bool | None = None,
        renderer: Renderer | None = None,
        turn_timeout: float = 600.0,
        session_timeout: float | None = None,
        group_timeout: float | None = None,
        skip_flat: bool = False,
        give_up: int = 16,
        evaluation: bool = False,
        **overrides: Unpack[RunKeywords],
    ) -> None:
        chosen = _as_gconfig(gconfig)
        if not evaluation:
            check_distribution(chosen)
        if session_timeout is not None:
            overrides["deadline"] = session_timeout
        run = RunSettings.of(settings or _DEFAULTS, overrides)
        for name, value in (("turn_timeout", turn_timeout), ("deadline", run.deadline)):
            if not 0 < value < math.inf:
                raise InvalidInput(f"{name} is {value}; it must be finite and above 0")
        self._settings = SharedSettings(
            spec=as_spec(env),
            store=os.path.abspath(store),  # noqa: PTH100 - the path need not exist
            run=run,
            gconfig=chosen,
            as_admitted=not settings and "concurrency" not in overrides,
            turn_timeout=turn_timeout,
            renderer=renderer or _renderer(tokenizer),
            annotators=as_annotators(annotators),
        )
        self._build = RowBuilder(
            deriver,
            "AReaL",
            allow=get_args(Allowance) if evaluation else allow,
            temperature=chosen.temperature,
            missing_signals=missing_signals,
        )
        self._dense = dense
        self._turn_ids = areal_major() > 1 if turn_ids is None else turn_ids
        self._skip_flat = skip_flat
        self._group_seconds = group_timeout or self._longest()
        if give_up < 1:
            raise InvalidInput(f"give_up is {give_up}; it must be at least 1")
        key = (self._settings.store, repr(self._build.deriver))
        self._watch = None if evaluation else watch_for(key, give_up)

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
            reason = f"a timeout after {self._group_seconds:g} s"
            _log.error(
                "group of %s: timed out after %g s; sessions that can't be cancelled keep running",
                str(data)[:80],
                self._group_seconds,
            )
        except Exception as error:  # noqa: BLE001 - boundary: AReaL takes None as rejected
            _log.exception("group of %s: no rows", str(data)[:80])
            reason = repr(error)
        self._nothing(engine, reason)
        return None

    def _nothing(self, engine: Any, reason: str) -> None:
        if self._watch is not None:
            self._watch.nothing(engine, reason)

    def _longest(self) -> float:
        """Return the longest time that a group can take (s).

        The rivals of a round of an expansion run concurrently.
        """
        kind = self._settings.spec.resolve()
        run = self._settings.run
        rounds = 0 if run.expansion is None else run.expansion.rounds
        tries = 1 + run.retries + rounds
        around = kind.reset_seconds + kind.verify_seconds + kind.close_seconds
        annotators = self._settings.annotators
        annotated = 0.0 if annotators is None else annotators.group_seconds
        return tries * (run.deadline + around) + annotated + _GRACE

    async def _episode(self, engine: Any, task: Task) -> dict[str, Any] | None:
        sealed = await sessions_for(self._settings, engine).play(task)
        found = await asyncio.to_thread(self._build, sealed)
        _report(found)
        if missing := found.reasons + found.lacking:
            _log.warning("group of task %s: left out or lacking: %s", task.id, dict(missing))
        if not found.sessions:
            self._nothing(engine, f"left out: {dict(found.reasons)}")
            return None
        if self._watch is not None:
            self._watch.rows()
        if self._skip_flat and found.flat:
            return None
        tensors: dict[str, Any] = await asyncio.to_thread(
            areal_tensors, found.rows, dense=self._dense, turn_ids=self._turn_ids
        )
        return tensors


def _report(found: GroupRows) -> None:
    """Report scores, turns and failures of a group to AReaL's tracker."""
    tracker = stats_tracker.get(workflow_context.stat_scope())
    for tree, rows in found.sessions:
        outcome = tree.attempts[0].outcome
        turns = sum(not turn.simulated for turn in tree.turns)
        tracker.scalar(num_turns=turns, num_rows=len(rows))
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


@cache  # AReaL creates a workflow for every task
def _renderer_at(path: str) -> Renderer:
    from transformers import AutoTokenizer

    return renderer_for(AutoTokenizer.from_pretrained(path))

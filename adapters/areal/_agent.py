"""Agents for AReaL's OpenAI proxy: one that runs an environment, and a wrapper for others."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from trajgym.adapters._annotating import as_annotators
from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters._group_rows import RowBuilder
from trajgym.adapters.areal._give_up import watch_for
from trajgym.adapters.areal._tasks import as_spec, read_task
from trajgym.rewards import Rewards
from trajgym.rollout import OpenAIPolicy, Runner, RunSettings
from trajgym.trajectory import InvalidInput, Outcome, Sampling, Store

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Sequence

    from trajgym.adapters._annotating import Annotators, AnnotatorSpec
    from trajgym.adapters._group_rows import MissingRule
    from trajgym.envs import EnvSpec
    from trajgym.rewards import DeriverSpec
    from trajgym.rollout import PolicyRequest, RunKeywords, SealedGroup
    from trajgym.trajectory import Task

__all__ = ["EnvAgent", "ExternalAgent"]

_DEFAULTS = RunSettings(deadline=3600.0)


class EnvAgent:
    """Runs an environment through AReaL's OpenAI proxy: an agent for AReaL's ``workflow=``.

    AReaL records the tokens; the store records the session as text turns. The completion of every
    turn has its own reward. AReaL adds later rewards to earlier ones, with its ``turn_discount``,
    so a reward must be what the turn itself earned, not a return.

    Prefer :class:`TrajgymWorkflow`, which derives values over whole groups and sends token ids; the
    proxy renders the messages again for each call.

    Args:
        env: see :class:`TrajgymWorkflow`.
        store: directory of a run; each session writes its own file.
        deriver: returns rewards of one session; see :func:`trajgym.rewards.as_deriver`.
        annotators: annotate each session before its rewards are derived.
        missing_signals: ``zero`` uses sessions without the signals that the deriver reads;
            otherwise they fail.
        temperature: of every call; the proxy's default is also 1.
        max_tokens: most response tokens of a turn.
        turn_timeout: deadline of one call (s).
        session_timeout: another name for the setting ``deadline``, an hour by default (s).
        settings: how sessions are run, an object or a mapping; ``samples`` must be 1, because AReaL
            requests each session of a group separately.
        give_up: number of consecutive failed sessions that ends the training, counted in each
            process. In AReaL's mode ``inline`` its executor is stopped with an error; in mode
            ``subproc`` the process that started the agent's is interrupted (SIGINT).
        **overrides: settings by name: ``budgets``, ``retries``, ...

    Raises:
        UnknownEnv: there is no such environment.
        UnknownDeriver: there is no such deriver.
        InvalidInput: a setting is unknown or invalid, or the deriver returns advantages.
    """

    def __init__(
        self,
        env: EnvSpec | str | Mapping[str, Any],
        store: str | os.PathLike[str],
        *,
        deriver: DeriverSpec = "outcome",
        annotators: Annotators | Sequence[AnnotatorSpec] | None = None,
        missing_signals: MissingRule = "error",
        temperature: float = 1.0,
        max_tokens: int = 512,
        turn_timeout: float = 600.0,
        session_timeout: float | None = None,
        settings: RunSettings | Mapping[str, Any] | None = None,
        give_up: int = 64,
        **overrides: Unpack[RunKeywords],
    ) -> None:
        self._spec = as_spec(env)
        self._spec.resolve()
        self._store = Path(store)
        self._build = RowBuilder(
            deriver,
            "AReaL's proxy, which sums the rewards of turns,",
            kind=Rewards,
            missing_signals=missing_signals,
        )
        self._annotators = as_annotators(annotators)
        self._sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
        self._turn_timeout = turn_timeout
        if session_timeout is not None:
            overrides["deadline"] = session_timeout
        self._give_up = _positive(give_up)
        self._settings = RunSettings.of(settings or _DEFAULTS, overrides)
        if self._settings.samples != 1:
            raise InvalidInput(
                "samples must be 1: AReaL requests each session of a group separately"
            )

    async def run(
        self,
        data: Mapping[str, Any],
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        **_: Any,
    ) -> dict[str, float]:
        """Run one session; return the reward of each completion by its id.

        Args:
            data: an element of :func:`task_dataset`.
            base_url: of the proxy; from ``OPENAI_BASE_URL`` if None, as in AReaL's subprocesses.
            api_key: the session's key; from ``OPENAI_API_KEY`` if None.

        Raises:
            RolloutFailed: the session failed. AReaL then rejects the trajectory.
            InvalidInput: ``data`` has no task.
        """
        watch = watch_for((EnvAgent, str(self._store), repr(self._build.deriver)), self._give_up)
        try:
            rewards = await self._run(read_task(data), base_url, api_key)
        except Exception as error:  # boundary: counted, then AReaL rejects the trajectory
            watch.nothing(None, repr(error))
            raise
        watch.rows()
        return rewards

    async def _run(self, task: Task, base_url: str | None, api_key: str | None) -> dict[str, float]:
        completions: dict[int, str] = {}

        def note(request: PolicyRequest, answer: Any) -> None:
            completions[request.turn] = str(answer.id)

        async with OpenAIPolicy(
            "default",
            base_url=base_url,
            api_key=api_key,
            sampling=self._sampling,
            timeout=self._turn_timeout,
            on_answer=note,
        ) as policy:
            sealed = await self._play(task, policy)
        return await asyncio.to_thread(self._rewards, sealed, completions)

    async def _play(self, task: Task, policy: OpenAIPolicy) -> SealedGroup:
        shard = self._store / f"{uuid.uuid4().hex}.sqlite"
        async with await asyncio.to_thread(Store, shard) as store:
            labels = {"shard": shard.stem, **self._settings.labels}
            settings = replace(self._settings, labels=labels, concurrency=1)
            runner = Runner(self._spec, [task], policy, store=store, settings=settings)
            async with runner:
                async for sealed in runner:
                    if self._annotators is None:
                        return sealed
                    return await self._annotators(sealed, store)
        raise RolloutFailed(f"task {task.id}: the session did not finish")

    def _rewards(self, sealed: SealedGroup, completions: dict[int, str]) -> dict[str, float]:
        if not sealed.sessions:
            left = [member.left for member in sealed.group.members]
            raise RolloutFailed(
                f"task {sealed.group.task}: the session failed: {left}; the store has the cause"
            )
        (tree,) = sealed.sessions
        if (lacking := self._build.lacks(tree)) and not self._build.uses_lacking:
            raise RolloutFailed(f"task {sealed.group.task}: the session has {lacking}")
        values = self._build.values([sealed.group], [tree])
        found = values.of(tree.record.id)
        own = [turn.index for turn in tree.turns if not turn.simulated]
        return {completions[index]: float(found[index]) for index in own}


class ExternalAgent:
    """Wraps any agent for AReaL's ``workflow=``: adds a deadline and converts scores to floats.

    AReaL itself silently rejects integer scores, and has no deadline for agents.

    Args:
        agent: an async function of the data, called with ``base_url``, ``api_key`` and
            ``http_client`` if AReaL passes them; or ``"package.module:function"``, for use in other
            processes. It returns a score, an `Outcome`, or scores by completion id, and raises on
            failure.
        timeout: deadline of one call (s).
        give_up: number of consecutive failures that ends the training, see :class:`EnvAgent`.

    Raises:
        InvalidInput: ``give_up`` is below 1.
    """

    def __init__(
        self,
        agent: Callable[..., Awaitable[Any]] | str,
        timeout: float = 3600.0,
        *,
        give_up: int = 64,
    ) -> None:
        self._agent = agent
        self._timeout = timeout
        self._give_up = _positive(give_up)

    async def run(self, data: Any, **given: Any) -> float | dict[str, float]:
        """Run the agent.

        Raises:
            InvalidInput: the agent returned something other than a score.
            TimeoutError: the agent took more than ``timeout`` seconds and was cancelled.
        """
        name = self._agent if isinstance(self._agent, str) else repr(self._agent)
        watch = watch_for((ExternalAgent, name), self._give_up)
        try:
            agent = _imported(self._agent) if isinstance(self._agent, str) else self._agent
            async with asyncio.timeout(self._timeout):
                found = await agent(data, **given)
            scores = (
                {str(name): _score(value) for name, value in found.items()}
                if isinstance(found, Mapping)
                else _score(found)
            )
        except Exception as error:  # boundary: counted, then AReaL rejects the trajectory
            watch.nothing(None, repr(error))
            raise
        watch.rows()
        return scores


def _positive(give_up: int) -> int:
    if give_up < 1:
        raise InvalidInput(f"give_up is {give_up}; it must be at least 1")
    return give_up


def _score(found: Any) -> float:
    if isinstance(found, Outcome):
        found = found.score
    if not isinstance(found, int | float) or not math.isfinite(found):
        raise InvalidInput(
            f"the agent returned {found!r}: return a finite score, or raise an error if there is "
            "none",
        )
    return float(found)


def _imported(path: str) -> Callable[..., Awaitable[Any]]:
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(f"agent {path!r} can't be imported: {error}") from error

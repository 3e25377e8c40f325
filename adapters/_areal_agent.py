"""Agents for AReaL's OpenAI proxy: an environment played through it, or anybody's own code."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.adapters._areal_tasks import as_deriver, as_spec, read_task
from trajgym.adapters._errors import RolloutFailed
from trajgym.rewards import Rewards, TurnTable
from trajgym.rollout import OpenAIPolicy, Runner
from trajgym.trajectory import InvalidInput, Outcome, Sampling, Store

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable

    from trajgym.envs import EnvSpec
    from trajgym.rewards import Deriver
    from trajgym.rollout import PolicyRequest, SealedGroup
    from trajgym.trajectory import Task

__all__ = ["EnvAgent", "ExternalAgent"]


class EnvAgent:
    """Plays an environment through AReaL's OpenAI proxy: an agent for AReaL's ``workflow=``.

    AReaL records the tokens, and we the session, as text turns. Every turn's completion gets its
    own reward. AReaL adds later rewards to earlier ones, by its ``turn_discount``: rewards are what
    a turn earned, not returns.

    Prefer :class:`TrajgymWorkflow`: it derives values over whole groups, and sends ids where the
    proxy renders messages afresh.

    Args:
        env: see :class:`TrajgymWorkflow`.
        store: directory of a run; each session writes a shard of it.
        deriver: gives rewards, from one session.
        temperature: of every call; the proxy's default is 1 too.
        max_tokens: most response tokens of a turn.
        turn_timeout: seconds of one call.
        session_timeout: wall-clock seconds of a session.
        **runner_options: more settings of :class:`trajgym.rollout.Runner`.

    Raises:
        UnknownEnv: there is no such environment.
        UnknownDeriver: there is no such deriver.
        InvalidInput: the deriver gives advantages, or needs signals that no session has yet.
    """

    def __init__(
        self,
        env: EnvSpec | str | Mapping[str, Any],
        store: str | os.PathLike[str],
        *,
        deriver: Deriver | str | Mapping[str, Any] = "outcome",
        temperature: float = 1.0,
        max_tokens: int = 512,
        turn_timeout: float = 600.0,
        session_timeout: float = 3600.0,
        **runner_options: Any,
    ) -> None:
        self._spec = as_spec(env)
        self._spec.resolve()
        self._store = Path(store)
        self._deriver = as_deriver(deriver)
        if not isinstance(self._deriver.derive(_empty(self._deriver)), Rewards):
            raise InvalidInput(
                f"deriver {self._deriver.name!r} gives advantages, which AReaL would add up over "
                "turns: use one that gives rewards, such as 'outcome', or TrajgymWorkflow",
            )
        self._sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
        self._turn_timeout = turn_timeout
        self._options = {**runner_options, "deadline": session_timeout}

    async def run(
        self,
        data: Mapping[str, Any],
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        **_: Any,
    ) -> dict[str, float]:
        """Play one session; return each completion's reward.

        Args:
            data: an element of :func:`task_dataset`.
            base_url: of the proxy; from ``OPENAI_BASE_URL`` if None, as in AReaL's subprocesses.
            api_key: the session's key; from ``OPENAI_API_KEY`` if None.

        Raises:
            RolloutFailed: the session failed. AReaL then rejects the trajectory.
            InvalidInput: no task in ``data``.
        """
        task = read_task(data)
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
            labels = {"shard": shard.stem}
            options = {"labels": labels, **self._options}
            runner = Runner(self._spec, [task], policy, store=store, concurrency=1, **options)
            async with runner:
                async for sealed in runner:
                    return sealed
        raise RolloutFailed(f"task {task.id}: its session was not finished")

    def _rewards(self, sealed: SealedGroup, completions: dict[int, str]) -> dict[str, float]:
        if not sealed.sessions:
            left = [member.left for member in sealed.group.members]
            raise RolloutFailed(f"task {sealed.group.task}: {left}; the store has the cause")
        (tree,) = sealed.sessions
        digests = self._deriver.needs_digests
        values = self._deriver.derive(TurnTable.build([sealed.group], [tree], digests=digests))
        found = values.of(tree.record.id)
        return {completions[turn.index]: float(found[turn.index]) for turn in tree.turns}


class ExternalAgent:
    """Anybody's agent for AReaL's ``workflow=``: with a deadline, and scores made floats.

    AReaL rejects an integer score without a word, and waits for ever for an agent that hangs.

    Args:
        agent: an async function of the data, with ``base_url``, ``api_key`` and ``http_client``
            where AReaL gives them; or ``"package.module:function"``, for other processes. It
            returns a score, an `Outcome`, or scores by completion id, and raises if it fails.
        timeout: seconds of one call.
    """

    def __init__(self, agent: Callable[..., Awaitable[Any]] | str, timeout: float = 3600.0) -> None:
        self._agent = agent
        self._timeout = timeout

    async def run(self, data: Any, **given: Any) -> float | dict[str, float]:
        """Run the agent.

        Raises:
            InvalidInput: it returned something that is not a score.
            TimeoutError: it took too long, and was cancelled.
        """
        agent = _imported(self._agent) if isinstance(self._agent, str) else self._agent
        async with asyncio.timeout(self._timeout):
            found = await agent(data, **given)
        if isinstance(found, Mapping):
            return {str(name): _score(value) for name, value in found.items()}
        return _score(found)


def _empty(deriver: Deriver) -> TurnTable:
    return TurnTable.build([], [], digests=deriver.needs_digests)


def _score(found: Any) -> float:
    if isinstance(found, Outcome):
        found = found.score
    if not isinstance(found, int | float) or not math.isfinite(found):
        raise InvalidInput(
            f"the agent returned {found!r}: return a finite score, and raise an error where there "
            "is none: a failure is not a zero",
        )
    return float(found)


def _imported(path: str) -> Callable[..., Awaitable[Any]]:
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(f"agent {path!r} can't be imported: {error}") from error

"""Score an attempt that has just ended, with the environment's own code or its rubric."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from trajgym.envs._errors import EnvironmentFault
from trajgym.envs._results import as_facts, as_outcome
from trajgym.envs.faults import Fault, contained, fault_of
from trajgym.envs.rubrics import Case

if TYPE_CHECKING:
    from trajgym.envs._env import Env
    from trajgym.envs._threads import Worker
    from trajgym.envs.rubrics import Judgment, Part
    from trajgym.trajectory import Attempt, Outcome, SessionTree, Task

__all__ = ["verified"]


async def verified(
    env: Env, worker: Worker, task: Task, tree: SessionTree, attempt: Attempt
) -> Outcome | Fault:
    """Return the outcome of an attempt, or why it could not be verified within its deadline."""
    limit: asyncio.Timeout | None = None
    try:
        async with asyncio.timeout(env.verify_seconds) as limit:
            with contained():
                return await _score(env, worker, task, tree, attempt)
    except Exception as caught:  # noqa: BLE001 - boundary: environment code
        fault = fault_of(caught, "verify")
        if limit is not None and limit.expired():
            cause = f"verify did not end within {env.verify_seconds} s"
            return Fault("verify", cause, fault.error)
        return fault


async def _score(
    env: Env, worker: Worker, task: Task, tree: SessionTree, attempt: Attempt
) -> Outcome:
    """Return the outcome; any exception of the environment or the rubric is raised."""
    rubric = env.rubric
    if rubric is None:
        return as_outcome(await worker.call(env.verify))
    facts = as_facts(await worker.call(env.facts), "facts()", "verify")
    case = Case(task, tree, attempt, facts)
    judgments = {part.name: await _judged(env, worker, part, case) for part in rubric.judged}
    case = Case(task, tree, attempt, facts, judgments)
    return as_outcome(await worker.call(rubric.outcome, case))


async def _judged(env: Env, worker: Worker, part: Part, case: Case) -> Judgment:
    if env.judge is None:
        raise EnvironmentFault(
            "judge",
            f"rubric part {part.name!r} is judged by a model, and the environment has removed its "
            "judge during the session",
        )
    prompt: Any = await worker.call(part.prompt, case)
    answer = await env.judge.ask([{"role": "user", "content": prompt}], "judge")
    tokens = (
        (None, None)
        if answer.usage is None
        else (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    )
    return part.judgment(prompt, answer.text, answer.policy, tokens)

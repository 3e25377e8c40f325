"""A judge for the judged parts of a rubric."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from trajgym.envs.rubrics import Case, judgment_signal
from trajgym.rollout._policy import PolicyGarbage
from trajgym.rollout.annotators._annotate import Annotator
from trajgym.rollout.annotators._judging import ask
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.envs.rubrics import Rubric
    from trajgym.rollout._policy import Policy
    from trajgym.trajectory import SessionTree, Task, Turn

__all__ = ["RubricJudge"]


class RubricJudge(Annotator):
    """Asks a model the questions of a rubric's judged parts, once for each scored attempt.

    Signals of the attempt's last turn: for each part its judgment, with prompt, answer, value and
    model, under the name that :func:`trajgym.envs.rubrics.judgment_signal` gives. Scoring the run
    again reads them.

    Args:
        policy: the judge model; closed with the annotator.
        rubric: whose parts are judged.
        tasks: the tasks of the run, by id.
        source: recorded with the signals; ``rubric:<rubric>:<name of the policy>`` if None. Give
            another one when a prompt has changed: attempts that are judged under a source are not
            judged again.

    Raises:
        InvalidInput: the rubric has no judged part.
    """

    def __init__(
        self,
        policy: Policy,
        rubric: Rubric,
        tasks: Mapping[str, Task],
        *,
        source: str | None = None,
    ) -> None:
        if not rubric.judged:
            raise InvalidInput(f"rubric {rubric.name!r} has no part that a model judges")
        self.source = source or f"rubric:{rubric.name}:{policy.name}"
        self._policy = policy
        self._rubric = rubric
        self._tasks = tasks

    def turns(self, tree: SessionTree) -> list[Turn]:
        """Return the last turn of each scored attempt."""
        leaves = {a.leaf for a in tree.attempts if a.status.scored and a.leaf is not None}
        return [tree.turns[leaf] for leaf in sorted(leaves)]

    async def annotate(self, tree: SessionTree, turn: Turn) -> dict[str, Any]:
        """Return a judgment for each judged part.

        Raises:
            PolicyError: the judge did not answer.
            MissingJudgment: no mark could be read from an answer.
            InvalidInput: the task is not known.
        """
        attempt = next(a for a in tree.attempts if a.leaf == turn.index and a.status.scored)
        task = self._tasks.get(tree.record.task)
        if task is None:
            raise InvalidInput(f"session {tree.record.id}: no task {tree.record.task!r} is known")
        case = Case.recorded(task, tree, attempt)
        signals: dict[str, Any] = {}
        for part in self._rubric.judged:
            prompt = await asyncio.to_thread(part.prompt, case)
            (answer,) = await ask(
                self._policy, [{"role": "user", "content": prompt}], tree, turn, 1
            )
            if answer is None:
                raise PolicyGarbage(f"{self._policy.name}: the answer is not a valid message")
            judgment = part.judgment(prompt, answer, self._policy.name, (None, None))
            signals[judgment_signal(part.name)] = judgment.to_json()
        return signals

    async def close(self) -> None:
        """Close the policy."""
        await self._policy.close()

"""Repeating one recorded attempt in a fresh environment, and comparing what it gives."""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from trajgym.envs import Budgets, EnvSpec, Reply, Session
from trajgym.envs.faults import contained, describe
from trajgym.trajectory import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs import SubAgent
    from trajgym.trajectory import Attempt, Message, Outcome, SessionTree, Task, Turn

__all__ = ["Difference", "DifferenceCause", "Repeated", "Texts", "repeat", "why_not"]

DifferenceCause: TypeAlias = Literal[
    "environment",
    "task",
    "opening",
    "observation",
    "reward",
    "end",
    "outcome",
    "error",
    "deadline",
]
"""Why an attempt could not be confirmed; see :func:`verify_run`."""

_BEFORE, _SHOWN = 40, 200
"""Characters of an excerpt before the first difference, and in all."""


class Difference(NamedTuple):
    """A difference between a recorded attempt and its repetition."""

    session: str
    attempt: int
    turn: int | None
    """The turn where it was found; None before the first turn and for the outcome."""
    cause: DifferenceCause
    recorded: str
    """What the run has, from shortly before the first difference."""
    found: str
    """What the repetition gave, or what went wrong."""


@dataclass(slots=True)
class Repeated:
    """The result of repeating one attempt.

    Args:
        session: id of the session.
        attempt: number of the attempt.
        turns: how many turns were executed and compared.
        outcome: whether the outcome was compared.
        differences: the first difference of each cause.
        partly: why the comparison ended before the attempt did; else empty.
    """

    session: str
    attempt: int
    turns: int = 0
    outcome: bool = False
    differences: list[Difference] = field(default_factory=list)
    partly: str = ""


class Texts:
    r"""Compares messages after removing the parts of their texts that match a pattern.

    Args:
        ignore: regular expressions, such as ``in \d+\.\d+s``.
    """

    def __init__(self, ignore: Sequence[str] = ()) -> None:
        self._patterns = [re.compile(pattern) for pattern in ignore]

    def same(self, recorded: Sequence[Message], found: Sequence[Message]) -> bool:
        """Return whether the messages are equal apart from what is ignored."""
        return bool(self._cleaned(list(recorded)) == self._cleaned(list(found)))

    def _cleaned(self, value: Any) -> Any:
        if isinstance(value, str):
            for pattern in self._patterns:
                value = pattern.sub("", value)
            return value
        if isinstance(value, dict):
            return {key: self._cleaned(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._cleaned(inner) for inner in value]
        return value


def why_not(tree: SessionTree, attempt: Attempt) -> str:
    """Return why an attempt can't be repeated, before its environment is opened; else empty."""
    if not attempt.status.ended:
        return "still running"
    if str(attempt.status) == "failed:fork":
        return "its environment was never opened (failed:fork)"
    if any(turn.wire is not None for turn in tree.turns):
        return "recorded from an agent's own calls, which no environment executed"
    users = [turn for turn in tree.turns if turn.simulated]
    if any(not turn.policy.startswith("scripted") for turn in users):
        return "its simulated user is a model"
    return ""


async def repeat(
    tree: SessionTree, attempt: Attempt, task: Task | None, *, texts: Texts, deadline: float
) -> Repeated:
    """Execute an attempt's recorded messages in a fresh environment and compare the results.

    Args:
        tree: the recorded session.
        attempt: one of its attempts; its whole path is executed, from the reset.
        task: the session's task; None if the run does not have it.
        texts: compares messages.
        deadline: wall-clock seconds for the whole attempt.
    """
    one = _Repetition(tree, attempt, texts)
    if task is None:
        one.differ("task", None, tree.record.task, "the run has no such task")
        return one.result
    try:
        with contained():
            spec = EnvSpec.model_validate(tree.record.env)
            env = spec.resolve()
            budgets = Budgets.from_json(tree.record.budgets)
    except Exception as error:  # noqa: BLE001 - boundary: imports the environment's module
        one.differ("environment", None, str(tree.record.env.get("id")), describe(error))
        return one.result
    if not env.forkable:
        one.result.partly = "the environment declares that it can't be repeated (forkable = False)"
        return one.result
    if task.data.get("replayable") is False:
        one.result.partly = "the task declares that it can't be repeated (replayable: false)"
        return one.result
    session = Session(
        spec,
        task,
        session_id=tree.record.id,
        sample=tree.record.sample,
        seed=tree.record.seed,
        budgets=budgets,
        labels=tree.record.labels,
    )
    try:
        async with asyncio.timeout(deadline) as limit:
            async with session:
                await one.run(session)
    except TimeoutError:
        if not limit.expired():
            raise
        one.differ("deadline", one.last, str(attempt.status), f"not finished within {deadline} s")
    return one.result


@dataclass(slots=True)
class _Repetition:
    tree: SessionTree
    attempt: Attempt
    texts: Texts
    last: int | None = None
    """The turn that was executed last."""
    result: Repeated = field(init=False)

    def __post_init__(self) -> None:
        self.result = Repeated(self.tree.record.id, self.attempt.index)

    def differ(self, cause: DifferenceCause, turn: int | None, recorded: str, found: str) -> None:
        """Note a difference; only the first of each cause is kept."""
        if any(known.cause == cause for known in self.result.differences):
            return
        at = next(
            (i for i, (a, b) in enumerate(zip(recorded, found, strict=False)) if a != b),
            min(len(recorded), len(found)),
        )
        self.result.differences.append(
            Difference(
                self.result.session,
                self.result.attempt,
                turn,
                cause,
                _excerpt(recorded, at),
                _excerpt(found, at),
            )
        )

    async def run(self, session: Session) -> None:
        path = self.tree.trajectory(self.attempt)
        turns = [turn for turn in path if turn.agent == "main"]
        if not session.done and turns:
            opening = turns[0].context
            if not self.texts.same(opening, session.messages):
                self.differ("opening", None, _plain(opening), _plain(session.messages))
        if await self._follow(session, turns):
            await self._end(session)

    async def _follow(self, session: Session, turns: Sequence[Turn]) -> bool:
        """Execute the turns of one agent; return whether all of them were."""
        for position, turn in enumerate(turns):
            if session.done:
                self._ended_early(session, turn)
                return False
            if any(call.status == "timeout" for call in turn.calls):
                self.result.partly = "a tool call had timed out"
                return False
            self.last = turn.index
            step = await session.step(
                Reply(
                    message=turn.message,
                    context=None if turn.kept is None else self.tree.context(turn),
                    finish=turn.finish,
                    usage=turn.usage,
                    policy=turn.policy,
                )
            )
            self.result.turns += 1
            if session.status.kind != "failed":
                self._compare(turn, step.observation, step.reward)
            follower = turns[position + 1] if position + 1 < len(turns) else None
            if not await self._delegate(session, turn, follower):
                return False
        return True

    async def _delegate(self, session: Session, turn: Turn, follower: Turn | None) -> bool:
        """Execute the turns of the sub-agents that a turn spawned, in order, and join them."""
        spawned: dict[str, list[Turn]] = {}
        for other in self.tree.turns:
            if other.edge == "spawn" and other.parent == turn.index:
                own = [t for t in self.tree.turns if t.agent == other.agent]
                spawned[other.agent] = own
        if len(spawned) != len(session.spawned):
            # Spawned by the loop, or ended before its first turn: there is nothing to execute.
            self.result.partly = "a sub-agent has no turns, or was not spawned by a tool"
            return False
        if not spawned:
            return True
        for child, turns in zip(session.spawned, spawned.values(), strict=True):
            if not await self._child(child, turns):
                return False
        joined = await session.join()
        if follower is not None and follower.kept is None and not session.done:
            answers = follower.context
            if not self.texts.same(answers, joined.observation):
                self.differ("observation", turn.index, _plain(answers), _plain(joined.observation))
        return True

    async def _child(self, child: SubAgent, turns: Sequence[Turn]) -> bool:
        async with child:
            if not await self._follow(child, turns):
                return False
            if not child.done:
                # Its policy ended it, for a reason that only its answer may mention.
                self.result.partly = "a sub-agent was ended by its policy"
                return False
        return True

    def _compare(self, turn: Turn, observation: list[Message], reward: float | None) -> None:
        if not self.texts.same(turn.observation, observation):
            self.differ("observation", turn.index, _plain(turn.observation), _plain(observation))
        if not _close(turn.reward, reward):
            self.differ("reward", turn.index, str(turn.reward), str(reward))

    def _ended_early(self, session: Session, turn: Turn) -> None:
        if session.status.kind == "failed":
            self.differ("error", self.last, f"turn {turn.index} follows", _ending(session.attempt))
        else:
            found = _ending(session.attempt)
            self.differ("end", self.last, f"turn {turn.index} follows", found)

    async def _end(self, session: Session) -> None:
        recorded = self.attempt.status
        if recorded.kind == "truncated" and not session.done:
            await session.truncate(recorded.detail, self.attempt.cause)
        found = session.status
        if found.kind == "failed":
            if found != recorded:
                self.differ("error", self.last, _ending(self.attempt), _ending(session.attempt))
            return
        if not recorded.scored:
            return  # ended by something that is not repeated: a policy, a cancellation, a crash
        if found != recorded:
            self.differ("end", self.last, _ending(self.attempt), _ending(session.attempt))
        if session.done:
            self.result.outcome = True
            before, now = self.attempt.outcome, session.outcome
            if not _same_outcome(before, now):
                self.differ("outcome", None, _scored(before), _scored(now))


def _same_outcome(recorded: Outcome | None, found: Outcome | None) -> bool:
    if recorded is None or found is None:
        return recorded is found
    return recorded.passed == found.passed and _close(recorded.score, found.score)


def _close(recorded: float | None, found: float | None) -> bool:
    if recorded is None or found is None:
        return recorded is found
    return math.isclose(recorded, found, rel_tol=1e-9, abs_tol=1e-12)


def _scored(outcome: Outcome | None) -> str:
    if outcome is None:
        return "no outcome"
    return f"score {outcome.score:g}, {'passed' if outcome.passed else 'not passed'}"


def _ending(attempt: Attempt) -> str:
    cause = attempt.cause.partition("\n")[0]
    return f"{attempt.status}: {cause}" if cause else str(attempt.status)


def _plain(messages: Sequence[Message]) -> str:
    return "\n".join(f"{m['role']}: {text_of(m)}" for m in messages) or "nothing"


def _excerpt(text: str, at: int) -> str:
    start = max(0, at - _BEFORE)
    cut = text[start : start + _SHOWN]
    return f"{'…' * (start > 0)}{cut}{'…' * (start + _SHOWN < len(text))}"

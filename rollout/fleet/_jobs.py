"""Groups that a process is working on, and what is left of them when it dies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from trajgym.rollout._progress import Progress
from trajgym.rollout._resume import Earlier, with_sessions
from trajgym.trajectory import Run, Turn
from trajgym.trajectory._internal import StoreNotBegun

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.rollout._settings import RunSettings
    from trajgym.trajectory import Group, SessionTree, Task

__all__ = ["Job", "Left", "brief", "what_is_left"]


@dataclass(slots=True, eq=False)
class Job:
    """A group that is to be collected, or is being collected by a process.

    Args:
        task: the task that all members attempt.
        group: id of the group.
        earlier: what the run has of it.
        deaths: processes that died while they worked on it.
        alone: those of them that worked on nothing else.
        turns: indices of the turns that were reported, by session.
        ended: sessions whose end was reported.
        number: how many groups were begun before it.
    """

    task: Task
    group: str
    earlier: Earlier = field(default_factory=Earlier)
    deaths: int = 0
    alone: int = 0
    turns: dict[str, set[int]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    number: int = 0

    def note(self, event: Progress) -> None:
        """Remember that an event of one of its sessions was reported."""
        if event.turn is not None:
            self.turns.setdefault(event.session, set()).add(event.turn.index)
        elif event.kind == "ended":
            self.ended.add(event.session)


class Left(NamedTuple):
    """What the store has of a job whose process died."""

    job: Job
    events: list[Progress]
    """Acknowledged turns, and ends of sessions, that the process could not report any more."""
    sealed: Group | None
    """The group, if it was sealed; else it has to be continued."""


def what_is_left(shard: Path, jobs: list[Job], settings: RunSettings) -> list[Left]:
    """Return what a dead process's file has of its jobs, whose ``earlier`` is updated. Blocks.

    Args:
        shard: the file; it need not exist.
        jobs: the groups that the process was working on.
        settings: of the run.
    """
    if not shard.exists():
        return [Left(job, [], None) for job in jobs]
    try:
        run = Run(shard)
    except StoreNotBegun:
        return [Left(job, [], None) for job in jobs]
    found = []
    with run:
        known = {job.group: {m.session for m in job.earlier.members} for job in jobs}
        before = {job.group for job in jobs if job.earlier.sealed}
        with_sessions(
            {job.group: job.earlier for job in jobs},
            run,
            only={job.group for job in jobs},
            keep_failed=settings.keep_failed,
            max_tries=settings.max_tries,
        )
        for job in jobs:
            events = []
            for member in job.earlier.members:
                if member.session not in known[job.group]:
                    events += _unreported(run.session(member.session), job)
            group = run.group(job.group)
            job.earlier.sealed = group is not None and group.sealed
            if group is not None and job.group in before:
                # Sealed by an earlier run and reopened: sealed again only with a new member.
                new = {member.session for member in group.members} - known[job.group]
                job.earlier.sealed = group.sealed and bool(new)
            found.append(Left(job, events, group if job.earlier.sealed else None))
    return found


def _unreported(tree: SessionTree, job: Job) -> list[Progress]:
    name, task = tree.record.id, tree.record.task
    seen = job.turns.get(name, set())
    events = [
        Progress("turn", name, task, turn=brief(turn))
        for turn in tree.turns
        if turn.agent == "main" and turn.index not in seen
    ]
    if name not in job.ended:
        first = tree.attempts[0]
        score = None if first.outcome is None else first.outcome.score
        end = Progress("ended", name, task, str(first.status), score, None, first.cause)
        events.append(end)
    for event in events:
        job.note(event)
    return events


def brief(turn: Turn) -> Turn:
    """Return a turn without its messages, for reports to another process."""
    return Turn(
        index=turn.index,
        parent=turn.parent,
        message={"role": "assistant", "content": None},
        edge=turn.edge,
        attempt=turn.attempt,
        agent=turn.agent,
        reward=turn.reward,
        done=turn.done,
        finish=turn.finish,
        usage=turn.usage,
        policy=turn.policy,
        synthetic=turn.synthetic,
        started_at=turn.started_at,
        policy_seconds=turn.policy_seconds,
        env_seconds=turn.env_seconds,
    )

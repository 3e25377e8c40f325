"""Running one sample of a group: its session, its retries, and its membership."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, Unpack

from trajgym.envs import Session
from trajgym.envs.faults import contained
from trajgym.rollout._drive import SessionHooks, derive_seed, run_session
from trajgym.rollout._policy import Policy
from trajgym.rollout._resume import EXPANSION, is_finished, left_reason
from trajgym.rollout._settings import RunSettings
from trajgym.rollout.rules import SURPLUS
from trajgym.trajectory import Group, Member, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from trajgym.envs import EnvSpec
    from trajgym.rollout._settings import RunKeywords
    from trajgym.trajectory import SessionTree, Store, Task

__all__ = ["STALE", "OpenGroup", "group_id", "oldest_version", "run_sample"]

_log = logging.getLogger(__name__)
STALE = Status("failed", "staleness")
"""Of a session that updates of the weights overtook; its sample is run again."""


def group_id(task: Task, repetition: int = 0) -> str:
    """Return the id of a task's group: the same in every run, and without underscores."""
    name = f"{task.id}#{repetition}" if repetition else task.id
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def oldest_version(tree: SessionTree) -> int | None:
    """Return the lowest policy version of a session's sampled tokens; None without any."""
    versions = [
        segment.version_low
        for turn in tree.turns
        if turn.tokens is not None
        for segment in turn.tokens.segments
        if segment.sampled
    ]
    return min(versions, default=None)


@dataclass(slots=True)
class OpenGroup:
    """A group whose samples are being run; :func:`run_sample` adds their sessions.

    Args:
        task: the task that all members attempt.
        group: the record.
        store: where the group is stored; None keeps it in memory.
        waiting: samples that have not ended yet.
        tries: number of sessions that each sample has had.
    """

    task: Task
    group: Group
    store: Store | None
    waiting: set[int]
    tries: Counter[int] = field(default_factory=Counter)
    unfinished: bool = False
    """True if a sample was cancelled: the group then stays open until a later run finishes it."""
    kept: frozenset[int] | None = None
    """The samples that the group keeps, once it has enough of them; see :meth:`end_early`."""
    exactly: bool = False
    """Whether it keeps those only: other sessions leave even if they are scored."""

    @classmethod
    def of(cls, task: Task, samples: int, *, store: Store | None = None, id: str = "") -> Self:  # noqa: A002
        """Return a group without members.

        Args:
            task: the task that all members attempt.
            samples: number of planned members.
            store: where the group and its sessions are stored.
            id: id of the group; :func:`group_id` of the task by default.
        """
        group = Group(id=id or group_id(task), task=task.id, planned=samples)
        return cls(task, group, store, set(range(samples)))

    def next_id(self, sample: int, name: str | None = None) -> str:
        """Return the id of a sample's next session, and count it.

        Args:
            sample: number of the sample.
            name: id of its first session, if not ``<group>-<sample>``.
        """
        name = name or f"{self.group.id}-{sample}"
        number = self.tries[sample]
        self.tries[sample] += 1
        return f"{name}.{number}" if number else name

    async def add(self, session: Session) -> None:
        """Record a session that has ended as a member; it has left if it has no score.

        Raises:
            StoreError: the group can't be written.
        """
        left = SURPLUS if self._is_surplus(session) else left_reason(session.status)
        self.group.members.append(Member(session.id, session.record.sample, left))
        if self.store is not None:
            await self.store.put_group(self.group)

    @property
    def full(self) -> bool:
        """True once the group needs no further session: those that are cancelled are surplus."""
        return self.kept is not None

    def end_early(self, kept: Collection[int], *, exactly: bool) -> None:
        """Let the sessions leave that a group which has enough does not keep.

        Args:
            kept: samples that are enough.
            exactly: whether no other sample may be kept, though it has ended with a score.
        """
        self.kept, self.exactly = frozenset(kept), exactly
        if exactly:
            self.group.members = [
                member if member.left or member.sample in kept else member._replace(left=SURPLUS)
                for member in self.group.members
            ]

    def _is_surplus(self, session: Session) -> bool:
        if self.kept is None:
            return False
        if session.status.kind == "cancelled":
            return True
        return self.exactly and session.status.scored and session.record.sample not in self.kept

    def note_end(self, session: Session, sample: int) -> None:
        """Count a sample whose last session has ended."""
        finished = is_finished(session.status) or self._is_surplus(session)
        self.unfinished = self.unfinished or not finished
        self.waiting.discard(sample)

    @property
    def complete(self) -> bool:
        """True once all planned samples have ended and none was cancelled."""
        return not self.waiting and not self.unfinished

    async def seal(self) -> None:
        """Record that the members will not change any more.

        Raises:
            StoreError: the group can't be written.
        """
        self.group.sealed = True
        if self.store is not None:
            await self.store.put_group(self.group)


async def run_sample(
    spec: EnvSpec,
    policy: Policy | Callable[[], Policy],
    group: OpenGroup,
    sample: int = 0,
    *,
    settings: RunSettings | None = None,
    session_id: str | None = None,
    hooks: SessionHooks | None = None,
    **overrides: Unpack[RunKeywords],
) -> Session:
    """Run one sample of a group: a session, and retries while it ends as ``failed``.

    Every session is recorded as a member of the group when it ends; failed ones have left it, with
    their status as the reason. Failures are not raised. After the last session the sample is
    removed from ``waiting``. Sealing a complete group is left to the caller, which knows whether
    members are stale.

    Args:
        spec: the environment.
        policy: gives the assistant messages, or makes a policy for each session.
        group: the group that the sample belongs to.
        sample: its number, from 0.
        settings: ``retries``, ``budgets``, ``seed``, ``deadline``, ``labels``, ``snapshot_every``
            and ``expansion`` are used; ``hooks`` limit how many sessions run at the same time.
        session_id: id of the first session; ``<group>-<sample>`` by default. Retries are
            numbered: ``<id>.1``.
        hooks: see :class:`SessionHooks`.
        **overrides: settings by name.

    Returns:
        The last session, closed.

    Raises:
        StoreError: the store can't be written any more.
        InvalidInput: a setting does not exist or is invalid.
    """
    settings = RunSettings.of(settings, overrides)
    hooks = hooks or SessionHooks()
    retries = settings.retries
    while True:
        chosen = policy if isinstance(policy, Policy) else policy()
        session = _session(spec, chosen, group, sample, settings, session_id)
        await run_session(
            session,
            chosen,
            group.task,
            sample=sample,
            seed=settings.seed,
            deadline=settings.deadline,
            expansion=settings.expansion,
            hooks=hooks,
        )
        await group.add(session)
        _report_end(hooks, session)
        if session.status.kind != "failed" or group.full:
            break
        if session.status != STALE:
            retries -= 1
        if retries < 0 or (session.status == STALE and group.tries[sample] >= settings.max_tries):
            break
    group.note_end(session, sample)
    return session


def _report_end(hooks: SessionHooks, session: Session) -> None:
    try:
        with contained():
            hooks.on_end(session)
    except Exception:  # noqa: BLE001 - boundary: a callback; the session has its end already
        _log.exception("session %s: on_end failed", session.id)


def _session(
    spec: EnvSpec,
    policy: Policy,
    group: OpenGroup,
    sample: int,
    settings: RunSettings,
    session_id: str | None,
) -> Session:
    labels = {"policy": policy.name, **settings.labels}
    if settings.expansion is not None:
        labels[EXPANSION] = repr(settings.expansion)
    return Session(
        spec,
        group.task,
        store=group.store,
        session_id=group.next_id(sample, session_id),
        group=group.group.id,
        sample=sample,
        seed=derive_seed(settings.seed, group.task.id),
        budgets=settings.budgets,
        labels=labels,
        snapshot_every=settings.snapshot_every,
    )

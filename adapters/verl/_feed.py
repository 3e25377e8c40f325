"""Sessions of a session server's feed, handed to verl's rollouts one by one."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters._fed import FedGroups, Worked
from trajgym.adapters._group_rows import GroupRows, RowBuilder
from trajgym.rewards import Advantages
from trajgym.server import Feed
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection

    from trajgym.adapters._group_rows import MissingRule
    from trajgym.adapters.verl._settings import FeedSettings
    from trajgym.trajectory import SessionTree, TrainingRow

__all__ = ["FedSessions", "fed_sessions", "share_of"]

_log = logging.getLogger(__name__)
_NUMBER = re.compile(r"agent_loop_worker_(\d+)")


class _Session(NamedTuple):
    tree: SessionTree
    rows: list[TrainingRow]
    last_of: Worked[GroupRows] | None
    """The group whose last session this is."""


class FedSessions:
    """The sessions with rows of all groups of a feed, each with its group's advantages.

    A group is acknowledged once its last session was handed out. Bound to one event loop.

    Args:
        groups: of the feed, made into rows.
        announces: whether to announce the trainer's steps as policy versions.
    """

    def __init__(self, groups: FedGroups[GroupRows], *, announces: bool) -> None:
        self._groups = groups
        self._announces = announces
        self._lock = asyncio.Lock()
        self._ready: deque[_Session] = deque()

    async def take(self, step: int) -> tuple[SessionTree, list[TrainingRow]]:
        """Return the next session and its rows.

        Args:
            step: the trainer's, announced as the policy version.

        Raises:
            RolloutFailed: the feed has ended.
            ServerError: see :meth:`FedGroups.take`.
        """
        if self._announces:
            await self._groups.announce(step)
        async with self._lock:
            while not self._ready:
                # No deadline here: the rollout has one.
                worked = await self._groups.take()
                if worked is None:
                    raise RolloutFailed("the feed has ended")
                if missing := worked.made.reasons + worked.made.lacking:
                    group = worked.fed.sealed.group.id
                    _log.warning("group %s: left out or lacking: %s", group, dict(missing))
                last = len(worked.made.sessions) - 1
                for number, (tree, rows) in enumerate(worked.made.sessions):
                    self._ready.append(_Session(tree, rows, worked if number == last else None))
                if last < 0:
                    await self._groups.done(worked)
            session = self._ready.popleft()
        if session.last_of is not None:
            await self._groups.done(session.last_of)
        return session.tree, session.rows


_open: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, FedSessions]] = WeakKeyDictionary()


def fed_sessions(
    settings: FeedSettings,
    share: tuple[int, int],
    *,
    allow: Collection[str],
    temperature: float | None,
    missing_signals: MissingRule,
) -> FedSessions:
    """Return the feed of the running event loop, opened by the first call.

    Args:
        settings: of the feed.
        share: place of this worker, and number of workers.
        allow: see :class:`trajgym.adapters.RowBuilder`.
        temperature: the trainer's.
        missing_signals: see :class:`trajgym.adapters.RowBuilder`.

    Raises:
        InvalidInput: the deriver is unknown or returns rewards.
    """
    known = _open.setdefault(asyncio.get_running_loop(), {})
    key = settings.model_dump_json()
    if key not in known:
        build = RowBuilder(
            settings.group_deriver(),
            "verl's agent loop",
            kind=Advantages,
            allow=allow,
            temperature=temperature,
            missing_signals=missing_signals,
        )
        feed = Feed(
            settings.url,
            settings.consumer,
            max_staleness=settings.max_staleness,
            stale=settings.stale,
            share=share,
            patience=settings.seconds,
        )
        known[key] = FedSessions(FedGroups(feed, build), announces=share[0] == 0)
    return known[key]


def share_of(workers: int) -> tuple[int, int]:
    """Return the place of this agent loop worker, and their number, from its Ray actor's name.

    Raises:
        InvalidInput: there are several workers, and this one's name has no number.
    """
    if workers == 1:
        return 0, 1
    import ray

    name: Any = ray.get_runtime_context().get_actor_name()
    found = _NUMBER.match(str(name))
    if found is None or int(found[1]) >= workers:
        raise InvalidInput(
            f"trajgym.feed: the worker {name!r} has no number below {workers}: set "
            "actor_rollout_ref.rollout.agent.num_workers to 1",
        )
    return int(found[1]), workers

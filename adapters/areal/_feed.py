"""The groups of a session server as AReaL's rollouts. Importing this module imports AReaL."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from areal.api import RolloutWorkflow

from trajgym.adapters._fed import FedGroups
from trajgym.adapters._group_rows import GroupRows, RowBuilder
from trajgym.adapters.areal._errors import areal_major, need_areal
from trajgym.adapters.areal._give_up import watch_for
from trajgym.adapters.areal._tensors import areal_tensors
from trajgym.server import Feed
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection

    from trajgym.adapters._group_rows import MissingRule
    from trajgym.rewards import DeriverSpec
    from trajgym.server.feeding import Staleness

__all__ = ["FeedWorkflow"]

need_areal()
_log = logging.getLogger(__name__)


class FeedWorkflow(RolloutWorkflow):  # type: ignore[misc]
    """Returns the rows of the next group of a session server's feed for each episode.

    Agents run elsewhere and reach AReaL's engine through the server; nothing is sampled here. Each
    element of :func:`feed_dataset` stands for one group. AReaL's executor, staleness manager and
    trainer run as usual; the engine's version is announced to the server.

    A group is acknowledged once its rows were handed to AReaL, or it had none. Processes that train
    together divide the groups by ``share``.

    Args:
        url: of the server.
        consumer: see :class:`trajgym.server.Feed`.
        token: see :class:`trajgym.server.Feed`.
        share: place of this process, and number of processes.
        max_staleness: see :class:`trajgym.server.Feed`.
        stale: see :class:`trajgym.server.Feed`.
        announce: whether AReaL's versions are announced to the server; exactly one process should.
        seconds: longest time that an episode waits for a group (s).
        deriver: see :class:`TrajgymWorkflow`.
        missing_signals: see :class:`TrajgymWorkflow`.
        allow: kinds of sessions that are accepted nevertheless; see
            :class:`trajgym.adapters.Gate`.
        temperature: the trainer's; None takes that of the first session.
        dense: see :func:`areal_tensors`.
        turn_ids: whether to add turn numbers; None adds them if AReaL is 2 or newer.
        give_up: see :class:`TrajgymWorkflow`.

    Raises:
        InvalidInput: a setting is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        consumer: str = "trainer",
        token: str | None = None,
        share: tuple[int, int] = (0, 1),
        max_staleness: int | None = None,
        stale: Staleness = "drop",
        announce: bool = True,
        seconds: float = 3600.0,
        deriver: DeriverSpec = "grpo",
        missing_signals: MissingRule = "error",
        allow: Collection[str] = (),
        temperature: float | None = None,
        dense: bool | None = None,
        turn_ids: bool | None = None,
        give_up: int = 16,
    ) -> None:
        if not seconds > 0:
            raise InvalidInput(f"seconds is {seconds}; it must be above 0")
        self._build = RowBuilder(
            deriver,
            "AReaL",
            allow=allow,
            temperature=temperature,
            missing_signals=missing_signals,
        )
        self._feed = {
            "url": url,
            "consumer": consumer,
            "token": token,
            "share": tuple(share),
            "max_staleness": max_staleness,
            "stale": stale,
            "patience": seconds,
        }
        self._announce = announce
        self._seconds = seconds
        self._dense = dense
        self._turn_ids = areal_major() > 1 if turn_ids is None else turn_ids
        self._watch = watch_for((url, consumer, repr(self._build.deriver)), give_up)

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        """Return the next group as tensors ``[B, T]``, or None if it has no rows.

        Args:
            engine: AReaL's ``InferenceEngine``; its version is announced.
            data: an element of the data set, not read.
        """
        del data
        try:
            async with asyncio.timeout(self._seconds):
                return await self._episode(engine)
        except Exception as error:  # noqa: BLE001 - boundary: AReaL takes None as rejected
            _log.exception("feed of %s: no rows", self._feed["url"])
            self._watch.nothing(engine, repr(error))
        return None

    async def _episode(self, engine: Any) -> dict[str, Any] | None:
        groups = _groups_of(self._feed, self._build)
        if self._announce:
            await groups.announce(engine.get_version())
        worked = await groups.take()
        assert worked is not None  # without idle_seconds, a feed does not end
        found = worked.made
        if missing := found.reasons + found.lacking:
            group = worked.fed.sealed.group.id
            _log.warning("group %s: left out or lacking: %s", group, dict(missing))
        tensors: dict[str, Any] | None = None
        if found.sessions:
            self._watch.rows()
            tensors = await asyncio.to_thread(
                areal_tensors, found.rows, dense=self._dense, turn_ids=self._turn_ids
            )
        else:
            self._watch.nothing(engine, f"left out: {dict(found.reasons)}")
        await groups.done(worked)
        return tensors


_open: dict[tuple[asyncio.AbstractEventLoop, str], FedGroups[GroupRows]] = {}


def _groups_of(settings: dict[str, Any], build: RowBuilder) -> FedGroups[GroupRows]:
    """Return the feed of the running event loop, which is closed with the loop.

    AReaL creates a workflow for every task if it is named by a string.
    """
    from areal.infra.utils.concurrent import register_loop_cleanup

    key = (asyncio.get_running_loop(), repr((settings, build.deriver)))
    found = _open.get(key)
    if found is None:
        given = dict(settings)
        found = _open[key] = FedGroups(Feed(given.pop("url"), **given), build)

        async def close() -> None:
            await _open.pop(key).close()

        register_loop_cleanup(close)
    return found

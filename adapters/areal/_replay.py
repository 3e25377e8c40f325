"""Recorded runs as AReaL's rollouts. Importing this module imports AReaL."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.api import RolloutWorkflow

from trajgym.adapters._group_rows import RowBuilder
from trajgym.adapters.areal._errors import areal_major, need_areal
from trajgym.adapters.areal._give_up import watch_for
from trajgym.adapters.areal._tasks import read_replay
from trajgym.adapters.areal._tensors import areal_tensors
from trajgym.rollout import SealedGroup
from trajgym.trajectory import InvalidInput, Run

if TYPE_CHECKING:
    import os
    from collections.abc import Collection

    from trajgym.adapters._group_rows import GroupRows, MissingRule
    from trajgym.rewards import DeriverSpec

__all__ = ["ReplayWorkflow"]

need_areal()
_log = logging.getLogger(__name__)
_SECONDS = 600.0


class ReplayWorkflow(RolloutWorkflow):  # type: ignore[misc]
    """Returns the rows of a recorded group for each element of :func:`replay_dataset`.

    Nothing is sampled. AReaL's executor, staleness manager and trainer run as usual. Tokens have
    the versions that were recorded.

    Args:
        run: directory of the run.
        deriver: see :class:`TrajgymWorkflow`.
        missing_signals: see :class:`TrajgymWorkflow`.
        allow: kinds of sessions that are accepted nevertheless; see
            :class:`trajgym.adapters.Gate`.
        temperature: the trainer's; None takes that of the first session.
        dense: see :func:`areal_tensors`.
        turn_ids: whether to add turn numbers; None adds them if AReaL is 2 or newer.
        give_up: see :class:`TrajgymWorkflow`.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        deriver: DeriverSpec = "grpo",
        missing_signals: MissingRule = "error",
        allow: Collection[str] = (),
        temperature: float | None = None,
        dense: bool | None = None,
        turn_ids: bool | None = None,
        give_up: int = 16,
    ) -> None:
        self._run = Path(run)
        self._build = RowBuilder(
            deriver,
            "AReaL",
            allow=allow,
            temperature=temperature,
            missing_signals=missing_signals,
        )
        self._dense = dense
        self._watch = watch_for((str(self._run), repr(self._build.deriver)), give_up)
        self._turn_ids = areal_major() > 1 if turn_ids is None else turn_ids

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        """Return a recorded group as tensors ``[B, T]``, or None if it has no rows.

        Args:
            engine: stopped after too many groups without a row.
            data: an element of :func:`replay_dataset`.
        """
        try:
            async with asyncio.timeout(_SECONDS):
                found = await asyncio.to_thread(self._rows, read_replay(data))
                if not found.sessions:
                    self._watch.nothing(engine, f"left out: {dict(found.reasons)}")
                    return None
                self._watch.rows()
                return await asyncio.to_thread(
                    areal_tensors, found.rows, dense=self._dense, turn_ids=self._turn_ids
                )
        except Exception as error:  # noqa: BLE001 - boundary: AReaL takes None as rejected
            _log.exception("replay of %s: no rows", str(data)[:80])
            self._watch.nothing(engine, repr(error))
        return None

    def _rows(self, group: str) -> GroupRows:
        found = self._build(_sealed(self._run, group))
        if missing := found.reasons + found.lacking:
            _log.warning("replay of group %s: left out or lacking: %s", group, dict(missing))
        return found


def _sealed(path: Path, name: str) -> SealedGroup:
    with Run(path) as run:
        for group in run.groups():
            if group.id == name and group.sealed:
                members = sorted(group.counted, key=lambda member: member.sample)
                return SealedGroup(group, [run.session(member.session) for member in members])
    raise InvalidInput(f"{path}: no sealed group {name!r}")

"""Recorded runs as AReaL's rollouts. Importing this imports AReaL."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.api import RolloutWorkflow

from trajgym.adapters._areal_errors import areal_major, need_areal
from trajgym.adapters._areal_tasks import as_deriver, read_replay
from trajgym.adapters._areal_tensors import areal_tensors
from trajgym.adapters._groups import group_rows
from trajgym.rollout import SealedGroup
from trajgym.trajectory import InvalidInput, Run

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from trajgym.rewards import Deriver

__all__ = ["ReplayWorkflow"]

need_areal()
_log = logging.getLogger(__name__)
_SECONDS = 600.0


class ReplayWorkflow(RolloutWorkflow):  # type: ignore[misc]
    """Gives a recorded group's rows for each element of :func:`replay_dataset`; samples nothing.

    AReaL's executor, staleness manager and trainer run as they do online. The tokens keep the
    versions that they were recorded with.

    Args:
        run: directory of the run.
        deriver: see :class:`TrajgymWorkflow`.
        dense: see :func:`areal_tensors`.
        turn_ids: send turn numbers; None does so where AReaL is 2 or newer.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        deriver: Deriver | str | Mapping[str, Any] = "grpo",
        dense: bool | None = None,
        turn_ids: bool | None = None,
    ) -> None:
        self._run = Path(run)
        self._deriver = as_deriver(deriver)
        self._dense = dense
        self._turn_ids = areal_major() > 1 if turn_ids is None else turn_ids

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        """Return a recorded group as tensors ``[B, T]``, or None if it has no rows.

        Args:
            engine: not touched.
            data: an element of :func:`replay_dataset`.
        """
        del engine
        try:
            async with asyncio.timeout(_SECONDS):
                return await asyncio.to_thread(self._tensors, read_replay(data))
        except Exception:  # noqa: BLE001 - boundary: logged; AReaL counts None as rejected
            _log.exception("replay of %s: no rows", str(data)[:80])
        return None

    def _tensors(self, group: str) -> dict[str, Any] | None:
        found = group_rows(_sealed(self._run, group), self._deriver)
        if not found.sessions:
            _log.warning(
                "replay of group %s: left out: %s", group, dict(found.left + found.dropped)
            )
            return None
        return areal_tensors(found.rows, dense=self._dense, turn_ids=self._turn_ids)


def _sealed(path: Path, name: str) -> SealedGroup:
    with Run(path) as run:
        for group in run.groups():
            if group.id == name and group.sealed:
                members = sorted(group.counted, key=lambda member: member.sample)
                return SealedGroup(group, [run.session(member.session) for member in members])
    raise InvalidInput(f"{path}: no sealed group {name!r}")

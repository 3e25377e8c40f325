"""Opening and closing what the sessions of a run share in each environment."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from trajgym.envs import EnvironmentFault
from trajgym.envs.faults import contained, stoppable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.rollout._places import Places
    from trajgym.trajectory import Task

__all__ = ["close_runs", "open_runs"]

_log = logging.getLogger(__name__)
_CLOSE_SECONDS = 600.0
"""Deadline of an environment's ``close_run``."""


async def open_runs(places: Places, known: Sequence[Task]) -> None:
    """Call ``open_run`` of each environment; those that are open are closed if one fails.

    Args:
        places: the environments.
        known: the tasks of the run, as far as they are known.

    Raises:
        Exception: what the environment raised.
    """
    opened = 0
    try:
        for place in places.all.values():
            tasks = [task for task in known if places.of(task) is place]
            with contained():
                opening = place.env_class.open_run(place.spec.config, tasks)
                await stoppable(opening, "open_run()", seconds=places.cancel_seconds)
            opened += 1
    except BaseException as error:
        await close_runs(places, error, opened=opened)
        raise


async def close_runs(
    places: Places, first: BaseException | None = None, *, opened: int | None = None
) -> None:
    """Call ``close_run`` of each environment, the last one first, even if one fails.

    Args:
        places: the environments.
        first: the exception for which they are closed. It must not be hidden: failures to close
            are logged then.
        opened: how many are open; all of them by default.

    Raises:
        Exception: the first failure to close, if none came before; others are logged.
    """
    broken: BaseException | None = None
    for place in reversed(list(places.all.values())[:opened]):
        try:
            async with asyncio.timeout(_CLOSE_SECONDS) as limit:
                with contained():
                    closing = place.env_class.close_run(place.spec.config)
                    await stoppable(closing, "close_run()", seconds=places.cancel_seconds)
        except Exception as error:  # noqa: BLE001 - boundary: environment code
            failure: Exception = error
            if limit.expired():
                cause = f"close_run() did not end within {_CLOSE_SECONDS:g} s"
                failure = EnvironmentFault("env", cause)
                failure.__cause__ = error
            if first is None and broken is None:
                broken = failure
            else:
                _log.error("%s: close_run() failed", place.spec.id, exc_info=failure)
        except BaseException as error:  # noqa: BLE001 - raised once the others are closed
            broken = error
    if broken is not None:
        raise broken

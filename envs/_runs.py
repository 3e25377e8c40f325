"""Opening and closing what the sessions of a run share in each environment."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from trajgym.envs._errors import EnvironmentFault
from trajgym.envs._stoppable import stoppable
from trajgym.envs.faults import contained

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from trajgym.envs._spec import EnvSpec
    from trajgym.trajectory import Task

__all__ = ["close_runs", "open_runs", "opened_run"]

_log = logging.getLogger(__name__)
_CLOSE_SECONDS = 600.0
"""Deadline of an environment's ``close_run``."""


async def open_runs(wanted: Iterable[tuple[EnvSpec, Sequence[Task]]]) -> None:
    """Call ``open_run`` of each environment; those that are open are closed if one fails.

    Args:
        wanted: the environments, each with those of its tasks that are known.

    Raises:
        Exception: what the environment raised.
    """
    opened: list[EnvSpec] = []
    try:
        for spec, tasks in wanted:
            env = spec.resolve()
            with contained():
                opening = env.open_run(spec.config, tasks)
                await stoppable(opening, "open_run()", seconds=env.cancel_seconds)
            opened.append(spec)
    except BaseException as error:
        await close_runs(opened, error)
        raise


async def close_runs(specs: Sequence[EnvSpec], first: BaseException | None = None) -> None:
    """Call ``close_run`` of each environment, the last one first, even if one fails.

    Args:
        specs: the environments.
        first: the exception for which they are closed. It must not be hidden: failures to close
            are logged then.

    Raises:
        Exception: the first failure to close, if none came before; others are logged.
    """
    broken: BaseException | None = None
    for spec in reversed(specs):
        try:
            await _close(spec)
        except Exception as error:  # noqa: BLE001 - boundary: environment code
            if first is None and broken is None:
                broken = error
            else:
                _log.exception("%s: close_run() failed", spec.id)
        except BaseException as error:  # noqa: BLE001 - raised once the others are closed
            broken = error
    if broken is not None:
        raise broken


@asynccontextmanager
async def opened_run(spec: EnvSpec, tasks: Sequence[Task]) -> AsyncIterator[None]:
    """Call ``open_run`` before the block and ``close_run`` after it.

    Raises:
        Exception: what the environment raised. If the block raised before, a failure to close is
            logged.
    """
    await open_runs([(spec, tasks)])
    try:
        yield
    except BaseException as error:
        await close_runs([spec], error)
        raise
    await close_runs([spec])


async def _close(spec: EnvSpec) -> None:
    env = spec.resolve()
    try:
        async with asyncio.timeout(_CLOSE_SECONDS) as limit:
            with contained():
                closing = env.close_run(spec.config)
                await stoppable(closing, "close_run()", seconds=env.cancel_seconds)
    except TimeoutError as late:
        if not limit.expired():
            raise
        cause = f"close_run() did not end within {_CLOSE_SECONDS:g} s"
        raise EnvironmentFault("env", cause) from late

"""Removing what workers left that died and were not replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajgym.envs.faults import contained, stoppable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs import EnvSpec

__all__ = ["tidy"]


async def tidy(environments: Sequence[EnvSpec]) -> None:
    """Open and close a run of each environment on this machine, which removes what is left.

    Args:
        environments: of the run.
    """
    for spec in environments:
        kind = spec.resolve()
        with contained():
            opening = kind.open_run(spec.config)
            await stoppable(opening, "open_run()", seconds=kind.cancel_seconds)
            closing = kind.close_run(spec.config)
            await stoppable(closing, "close_run()", seconds=kind.cancel_seconds)

"""Events of a run, for progress bars and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from trajgym.trajectory import Turn

__all__ = ["Progress"]


class Progress(NamedTuple):
    """An event, for progress bars and metrics."""

    kind: Literal["began", "turn", "ended", "sealed"]
    session: str
    task: str
    status: str = ""
    score: float | None = None
    turn: Turn | None = None
    """The turn that was recorded, for ``turn``."""
    cause: str = ""
    """Why the session failed, for ``ended``."""

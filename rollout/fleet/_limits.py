"""Deadlines of a fleet's processes."""

from __future__ import annotations

from dataclasses import dataclass, fields

from trajgym.trajectory import InvalidInput

__all__ = ["FleetLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    """How long a fleet waits for its processes, in seconds, and how often it replaces them.

    A process that exceeds a deadline is killed; its unfinished samples are run again.

    Args:
        start: from the start of a process until it has made its policy.
        room: the longest time without any process because no machine has room for one.
        open: until the environment's ``open_run`` has returned; images may be built in it.
        answer: until a command (pause, resume, version, stop) is confirmed, and the longest time
            without a sign of life.
        stop: until a process that is to end has closed its sessions.
        starts: after so many processes in a row that died, or failed, before they could run a
            session, the run is given up; if no process could, the first failure is raised.
        deaths: after so many deaths of a process that ran nothing but the group of one task, that
            group is left unfinished.

    Raises:
        InvalidInput: a value is not positive.
    """

    start: float = 300.0
    room: float = 600.0
    open: float = 3600.0
    answer: float = 60.0
    stop: float = 180.0
    starts: int = 5
    deaths: int = 3

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not value > 0:
                raise InvalidInput(f"fleet limit {one.name} is {value!r}; it must be more than 0")

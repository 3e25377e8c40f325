"""A group as a consumer receives it, and which ones it is done with."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.rollout import SealedGroup
from trajgym.server._errors import ServerError
from trajgym.server._json import dumps, loads
from trajgym.trajectory import Group, InvalidInput, SessionTree
from trajgym.trajectory._codec import decode

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FedGroup", "Taken", "read_line"]


class FedGroup(NamedTuple):
    """A group of the feed."""

    position: int
    """Its place in the feed; later groups have higher ones."""
    sealed: SealedGroup
    """The group; sessions that were too old have left it as ``stale``, unless they are reported."""
    stale: Mapping[str, int]
    """By how many versions each session that was too old was behind."""
    version: int
    """The trainer's policy version as the server knew it."""


def read_line(line: bytes) -> FedGroup | dict[str, Any]:
    """Return the group of a line, or the fields of the feed's last line. Blocks while it parses.

    Raises:
        ServerError: it is neither.
    """
    try:
        data = loads(line)
        if data.get("end"):
            found: dict[str, Any] = data
            return found
        group = decode(Group, dumps(data["group"]))
        trees = [SessionTree.from_json(one) for one in data["sessions"]]
        return FedGroup(data["position"], SealedGroup(group, trees), data["stale"], data["version"])
    except (ValueError, KeyError, TypeError, AttributeError, InvalidInput) as error:
        raise ServerError(f"the feed sent a line that is no group: {error}") from error


class Taken:
    """Positions that were handed out, in ascending order, some of which are done with."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, bool] = OrderedDict()

    def add(self, position: int) -> None:
        """Add a position."""
        self._open[position] = False

    def done(self, position: int) -> int | None:
        """Mark a position as done with; return what can be acknowledged now, if it is more.

        That is the highest position below which nothing is open.
        """
        if position in self._open:
            self._open[position] = True
        found = None
        while self._open and next(iter(self._open.items()))[1]:
            found, _ = self._open.popitem(last=False)
        return found

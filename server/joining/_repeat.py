"""Rule R: how a request is handled whose body was sent before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["REPLAY_SECONDS", "Earlier", "Repeat", "State", "repeat_of"]

REPLAY_SECONDS = 60.0
"""How long an undelivered answer can be replayed, in seconds: after its end, or after the client
left to which it was being sent."""

State: TypeAlias = Literal["running", "failed", "complete"]


class Earlier(NamedTuple):
    """An earlier request with the same body."""

    state: State
    client: bool
    """Its client is still connected."""
    delivered: bool
    """Its answer was written to the client completely."""
    followed: bool
    """A later call shows that the agent has the answer."""
    replayed: bool
    """The answer has been replayed already."""
    ended: float
    """When it ended, or its last client left after that (Unix time, s)."""


class Repeat(NamedTuple):
    """What to do with a request."""

    rule: Literal["new", "R1", "R2", "R3", "R4", "R5"]
    earlier: int | None = None
    """Index of the earlier request that it repeats."""

    @property
    def forwards(self) -> bool:
        """True if the request is sent to the engine; else it receives the earlier answer."""
        return self.rule not in {"R2", "R4"}


def repeat_of(earlier: Sequence[Earlier], *, now: float, retry: bool) -> Repeat:
    """Return how a request relates to earlier ones with the same body.

    ``R1``: twin of a running call. ``R2``: attaches to a running call whose client disconnected.
    ``R3``: the earlier call failed. ``R4``: receives an answer that was not delivered. ``R5``: a
    new sample.

    Args:
        earlier: oldest first.
        now: time (s), on the clock of ``Earlier.ended``.
        retry: the client marks the request as a retry. It has no answer then, so an answer that was
            written but lost in transit is replayed too.
    """
    running = [i for i, one in enumerate(earlier) if one.state == "running"]
    left = [i for i in running if not earlier[i].client]
    if left or (running and retry):
        return Repeat("R2", (left or running)[-1])
    if running:
        return Repeat("R1", running[-1])
    for i in reversed(range(len(earlier))):
        one = earlier[i]
        lost = not one.delivered or (retry and not one.followed)
        fresh = now - one.ended <= REPLAY_SECONDS
        if one.state == "complete" and lost and fresh and not one.replayed and not one.followed:
            return Repeat("R4", i)
    if not earlier:
        return Repeat("new")
    return Repeat("R3" if earlier[-1].state == "failed" else "R5", len(earlier) - 1)

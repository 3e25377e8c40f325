"""When a group has enough sessions, and what becomes of sessions that get too old."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral
from typing import TYPE_CHECKING, Literal

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["SURPLUS", "Enough", "Outdated"]

SURPLUS = "surplus"
"""Reason for which a session left a group that had enough others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enough:
    """Ends a group before all its planned samples have ended: over-sampling.

    Once ``sessions`` have been scored, of which ``solved`` were solved and ``unsolved`` were not,
    samples that have not begun are not run, and running sessions are cancelled; these leave the
    group as ``surplus``. The scored ones stay, so a group may have a few more than ``sessions``. If
    the condition is never met, all samples are run.

    Short sessions end first, so what is kept is biased towards them. The more samples a group
    plans beyond ``sessions``, the more. With ``in_order``, samples count in the order in which they
    begin, each only when all earlier ones have ended: what is kept then does not depend on how long
    sessions take. A group ends later, after its slowest session that counts, and scored sessions
    that come after those leave as ``surplus`` too.

    Args:
        sessions: least number of scored sessions.
        solved: how many of them must have been solved.
        unsolved: how many must not.
        score: least score of a solved session.
        in_order: count samples in the order in which they begin, not in that in which they end.

    Raises:
        InvalidInput: a value is out of range.
    """

    sessions: int
    solved: int = 0
    unsolved: int = 0
    score: float = 1.0
    in_order: bool = False

    def __post_init__(self) -> None:
        for one in fields(self)[:3]:
            value, least = getattr(self, one.name), int(one.name == "sessions")
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise InvalidInput(
                    f"enough {one.name} is {value!r}; it must be an integer of at least {least}"
                )
        order: object = self.in_order
        if not isinstance(order, bool):
            raise InvalidInput(f"enough in_order is {order!r}; it must be true or false")

    def met(self, scores: Collection[float]) -> bool:
        """Return whether these scored sessions are enough."""
        solved = sum(score >= self.score for score in scores)
        return (
            len(scores) >= self.sessions
            and solved >= self.solved
            and len(scores) - solved >= self.unsolved
        )

    def kept(self, scores: Mapping[int, float], waiting: Collection[int]) -> set[int] | None:
        """Return the samples that a group keeps because they are enough; None if they are not.

        Args:
            scores: of the samples that have ended with one.
            waiting: samples that have not ended yet, begun or not.
        """
        if not self.in_order:
            return set(scores) if self.met(scores.values()) else None
        kept: dict[int, float] = {}
        for sample in sorted(scores.keys() | waiting):
            if sample in waiting:
                return None
            kept[sample] = scores[sample]
            if self.met(kept.values()):
                return set(kept)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """Ends sessions that the trainer's updates overtake while they run.

    A session is too old when its oldest sampled token, or its beginning if it has none yet, is more
    than ``versions`` behind. It ends at its policy call, which is cancelled if it is in progress;
    a tool that is running ends first. Without this rule sessions continue over updates.

    Args:
        versions: versions that a running session may be behind.
        action: ``cut`` ends it as ``truncated:staleness``, which is verified and scored with what
            it has done; ``resample`` ends it as ``failed:staleness``, and runs its sample again
            from the start, up to the run's ``max_tries``.

    Raises:
        InvalidInput: a value is out of range.
    """

    versions: int
    action: Literal["cut", "resample"] = "cut"

    def __post_init__(self) -> None:
        versions: object = self.versions
        if isinstance(versions, bool) or not isinstance(versions, Integral) or versions < 0:
            raise InvalidInput(
                f"outdated versions is {versions!r}; it must be an integer of at least 0"
            )
        if self.action not in ("cut", "resample"):
            raise InvalidInput(f"outdated action is {self.action!r}; it is cut or resample")

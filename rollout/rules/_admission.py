"""How many groups may be begun ahead of the trainer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral

from trajgym.trajectory import InvalidInput

__all__ = ["Admission", "Capacity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """AReaL's capacity rule (arXiv 2505.24298, section 5.1), counted in groups.

    At policy version ``v``, at most ``(staleness + v + 1) * batch`` groups may have been begun,
    without those that were rejected. So a group that is begun at version ``v`` is needed for the
    update from version ``v + staleness`` at the latest, if the trainer takes ``batch`` groups for
    each update in the order of their admission. It bounds admission only: an admitted group that
    takes longer gets as old as it takes. ``max_staleness`` of :class:`RunSettings` bounds what is
    delivered.

    Args:
        batch: groups that one weight update takes.
        staleness: eta, weight updates that collection may be ahead; 0 is synchronous.
        running: most groups in progress at a time; None for no limit of its own.

    Raises:
        InvalidInput: a value is not an integer in its range.
    """

    batch: int
    staleness: int = 0
    running: int | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            value, least = getattr(self, one.name), int(one.name != "staleness")
            if value is None and one.name == "running":
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise InvalidInput(
                    f"admission {one.name} is {value!r}; it must be an integer of at least {least}"
                )


class Capacity:
    """Counts of the groups of a run, and how many more may be begun.

    The counts are those of AReaL 1.0.4's staleness manager, with which :meth:`left` agrees: a group
    is ``running`` from its admission until it is sealed, then ``accepted`` for good, or
    ``rejected``, which makes room for another one.

    Args:
        rule: the rule; None admits everything.
    """

    def __init__(self, rule: Admission | None) -> None:
        self.rule = rule
        self.running = 0
        """Groups in progress."""
        self.accepted = 0
        """Groups that were sealed with members that count."""
        self.rejected = 0
        """Groups that were sealed without any, or could not be sealed."""

    def left(self, version: int) -> int | None:
        """Return how many groups may be begun now; may be negative. None without a rule.

        Args:
            version: the trainer's policy version.
        """
        rule = self.rule
        if rule is None:
            return None
        ahead = (rule.staleness + version + 1) * rule.batch - self.accepted - self.running
        return ahead if rule.running is None else min(ahead, rule.running - self.running)

    def admits(self, version: int) -> bool:
        """Return whether another group may be begun."""
        left = self.left(version)
        return left is None or left > 0

    def recover(self, version: int) -> None:
        """Count the updates of an earlier process, whose trainer continues at ``version``.

        Otherwise the first version that is set would admit the batches of all earlier updates.
        """
        if self.rule is not None:
            self.accepted = version * self.rule.batch

    def begin(self) -> None:
        """Count a group that is begun."""
        self.running += 1

    def end(self, *, accepted: bool) -> None:
        """Count the end of a group that was begun."""
        self.running -= 1
        if accepted:
            self.accepted += 1
        else:
            self.rejected += 1

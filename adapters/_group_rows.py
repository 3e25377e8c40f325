"""The one path from sealed groups and session trees to training rows with values."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from trajgym.adapters._gate import Gate
from trajgym.envs.faults import contained
from trajgym.rewards import (
    Advantages,
    MissingSignals,
    Rewards,
    RunValues,
    apply,
    as_deriver,
    probe_deriver,
)
from trajgym.trajectory import InvalidInput, UnsupportedModality, build_rows, validate_row

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from trajgym.rewards import DeriverSpec
    from trajgym.rollout import SealedGroup
    from trajgym.trajectory import Dropped, Group, SessionTree, TrainingRow

__all__ = [
    "GroupRows",
    "MissingRule",
    "RowBuilder",
    "Values",
    "all_values",
    "check_values",
    "group_rows",
    "session_rows",
    "without_id",
]

Values: TypeAlias = Rewards | Advantages | RunValues
MissingRule: TypeAlias = Literal["error", "drop", "zero"]
"""How to treat sessions without the signals that a deriver reads (see `Deriver.missing`):

- ``error``: raise `MissingSignals`;
- ``drop``: leave the session out before values are derived, and count it;
- ``zero``: use the session as if the signals were 0, and count it.
"""


class GroupRows(NamedTuple):
    """Sessions with their rows, and the number of members without rows by reason.

    Args:
        sessions: the sessions that have rows.
        left: members that left the group, or were refused before values were derived, by reason.
        dropped: counted members without rows, by reason.
        lacking: sessions that were used although they lack a signal, by signal.
    """

    sessions: list[tuple[SessionTree, list[TrainingRow]]]
    left: Counter[str]
    dropped: Counter[str]
    lacking: Counter[str]

    @property
    def rows(self) -> list[TrainingRow]:
        """The rows of all sessions."""
        return [row for _, rows in self.sessions for row in rows]

    @property
    def flat(self) -> bool:
        """True if every advantage (or every reward, without advantages) is 0."""
        arrays = [r.reward if r.advantage is None else r.advantage for r in self.rows]
        return not any(array is not None and array.any() for array in arrays)

    @property
    def reasons(self) -> Counter[str]:
        """Number of members without rows, by reason."""
        return self.left + self.dropped


class RowBuilder:
    """Makes training rows from sealed groups for one consumer.

    The constructor runs the deriver on a small made-up group, to check that it works with its
    settings and returns the kind of values that the consumer takes.

    Args:
        deriver: see :func:`trajgym.rewards.as_deriver`; several are added up. None makes rows
            without values.
        consumer: name of the consumer, for error messages.
        kind: what the consumer takes: ``Advantages``, ``Rewards``, or None for either.
        allow: kinds of sessions that the gate accepts, see :class:`Gate`.
        temperature: the trainer's sampling temperature; None takes that of the first session.
        missing_signals: see `MissingRule`.

    Raises:
        InvalidInput: the deriver fails or returns the wrong kind of values, or ``allow`` or
            ``missing_signals`` has an unknown value.
    """

    def __init__(
        self,
        deriver: DeriverSpec | None,
        consumer: str,
        *,
        kind: type[Rewards | Advantages] | None = None,
        allow: Collection[str] = (),
        temperature: float | None = None,
        missing_signals: MissingRule = "error",
    ) -> None:
        if missing_signals not in {"error", "drop", "zero"}:
            raise InvalidInput(
                f"missing_signals is {missing_signals!r}; it must be 'error', 'drop' or 'zero'",
            )
        self.deriver = None if deriver is None else as_deriver(deriver)
        self.kind = kind
        if self.deriver is not None:
            self.kind = type(check_values(probe_deriver(self.deriver), kind, consumer))
        self._consumer = consumer
        self._missing = missing_signals
        self._gate = Gate(allow, temperature=temperature)

    def __call__(self, sealed: SealedGroup, *, images: bool = False) -> GroupRows:
        """Return a group's rows with values. Blocks while it computes.

        If one row of a session is refused, the whole session is dropped, so that no session is
        trained in part.

        Args:
            sealed: the group.
            images: whether the consumer adds the pixels of ``row.images`` to each row.

        Raises:
            MissingSignals: sessions lack signals that the deriver reads.
            InvalidInput: the deriver refuses the group.
            UnsupportedModality: a session contains images and ``images`` is False.
        """
        left = Counter(member.left for member in sealed.group.members if member.left)
        made = GroupRows([], left, Counter(), Counter())
        trees = list(self._admitted(sealed.sessions, made))
        if not trees:
            return made
        values = () if self.deriver is None else (self.values([sealed.group], trees),)
        for tree in trees:
            try:
                rows, dropped = session_rows(tree, values, images=images)
            except UnsupportedModality:
                raise
            except InvalidInput as error:
                made.dropped[without_id(str(error), tree.record.id)] += 1
                continue
            if rows:
                made.sessions.append((tree, rows))
            else:
                made.dropped[dropped[0].reason if dropped else "no sampled token"] += 1
        return made

    def values(
        self, groups: Iterable[Group], sessions: Iterable[SessionTree]
    ) -> Rewards | Advantages:
        """Return the deriver's values; the sessions are read once, as a stream.

        Raises:
            InvalidInput: the deriver refuses them, or gives another kind than it did before.
            trajgym.envs.faults.UserCodeExit: the deriver raised a ``BaseException`` that is not an
                ``Exception``.
        """
        if self.deriver is None:
            raise InvalidInput(f"{self._consumer}: values need a deriver, and none was given")
        table = self.deriver.table(groups, sessions)
        with contained():  # a CancelledError would pass for the end of the trainer's own task
            values = self.deriver.derive(table)
        return check_values(values, self.kind, self._consumer)

    def lacks(self, tree: SessionTree) -> str:
        """Return a description of the signals that a session lacks, or "".

        Raises:
            MissingSignals: the session lacks signals and ``missing_signals`` is ``error``.
        """
        if self.deriver is None or not (lacking := self.deriver.missing(tree)):
            return ""
        if self._missing == "error":
            raise MissingSignals(
                f"deriver {self.deriver.name!r}: session {tree.record.id} has {lacking}: run the "
                "annotator that records it, or set missing_signals to 'drop' or 'zero', which "
                "count such sessions",
            )
        return lacking

    @property
    def uses_lacking(self) -> bool:
        """Whether sessions without the signals that the deriver reads are used."""
        return self._missing == "zero"

    def _admitted(self, sessions: Sequence[SessionTree], made: GroupRows) -> Iterator[SessionTree]:
        for tree in sessions:
            if reason := self._gate.refusal(tree):
                made.left[reason] += 1
            elif not (lacking := self.lacks(tree)):
                yield tree
            elif self._missing == "drop":
                made.left[lacking] += 1
            else:
                made.lacking[lacking] += 1
                yield tree


def group_rows(
    sealed: SealedGroup,
    deriver: DeriverSpec,
    *,
    consumer: str = "this trainer",
    kind: type[Rewards | Advantages] | None = None,
    allow: Collection[str] = (),
    temperature: float | None = None,
    missing_signals: MissingRule = "error",
    images: bool = False,
) -> GroupRows:
    """Return the rows of one sealed group; see :class:`RowBuilder` for the arguments.

    For many groups, use a `RowBuilder`: it checks its settings only once.
    """
    build = RowBuilder(
        deriver,
        consumer,
        kind=kind,
        allow=allow,
        temperature=temperature,
        missing_signals=missing_signals,
    )
    return build(sealed, images=images)


def session_rows(
    tree: SessionTree, values: Sequence[Values] = (), *, images: bool = False
) -> tuple[list[TrainingRow], list[Dropped]]:
    """Return a session's checked rows with values, and the attempts without rows.

    Raises:
        InvalidInput: a row is refused.
        UnsupportedModality: the session contains images and ``images`` is False.
    """
    rows, dropped = build_rows(tree, images=images)
    for one in values:
        rows = apply(rows, one)
    for row in rows:
        validate_row(row)
    return rows, dropped


def without_id(reason: str, session: str) -> str:
    """Return a reason without the session's id at its start, so that equal reasons are counted."""
    return reason.removeprefix(f"session {session}: ").removeprefix(f"session {session} ")


def all_values(values: Values | Sequence[Values]) -> tuple[Values, ...]:
    """Return one or several values as a tuple."""
    if isinstance(values, Rewards | Advantages | RunValues):
        return (values,)
    return tuple(values)


def check_values(
    values: Rewards | Advantages, kind: type[Rewards | Advantages] | None, consumer: str
) -> Rewards | Advantages:
    """Return the values unchanged if they are of the kind that a consumer takes.

    Raises:
        InvalidInput: they are of the other kind.
    """
    if kind is None or isinstance(values, kind):
        return values
    name = values.stamp.deriver
    raise InvalidInput(_WRONG_KIND[kind](name, consumer))


_WRONG_KIND: dict[type, Callable[[str, str], str]] = {
    Advantages: lambda name, consumer: (
        f"deriver {name!r} gives rewards, and {consumer} takes advantages: use a deriver such as "
        f"'grpo', or an estimator over it: {{'name': 'stepwise', 'rewards': {name!r}}}"
    ),
    Rewards: lambda name, consumer: (
        f"deriver {name!r} gives advantages, and {consumer} takes rewards: use a deriver such as "
        "'outcome'"
    ),
}

"""Values over turns and spans: rewards and advantages, two types that can't be mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from trajgym.rewards._table import SPAN_KINDS
from trajgym.trajectory import InvalidInput, Stamp

if TYPE_CHECKING:
    import numpy.typing as npt

    from trajgym.rewards._table import Doubles, Ints, TurnTable

__all__ = ["Advantages", "Rewards", "SessionValues", "TurnValues", "add_stamps", "scale_stamp"]


class SessionValues(NamedTuple):
    """The values of one session."""

    turns: Doubles
    """float64 ``[turns]``."""
    spans: Doubles | None
    """float64 ``[spans]``, turn after turn; None means zeros."""
    span_starts: Ints
    """int64 ``[turns + 1]``, where each turn's spans start in ``spans``."""
    span_ids: Ints | None
    """int64 ``[spans, 3]``: kind (index in `SPAN_KINDS`), first response id, and one past the
    last; None without ``spans``."""

    def named_spans(self) -> list[tuple[int, str, float]]:
        """Return turn, span (``tool_call[3:9]``, response ids) and value, where it is not 0."""
        if self.spans is None or self.span_ids is None:
            return []
        turns = np.repeat(np.arange(self.turns.size), np.diff(self.span_starts))
        return [
            (
                int(turns[at]),
                "{}[{}:{}]".format(SPAN_KINDS[self.span_ids[at, 0]], *self.span_ids[at, 1:]),
                float(self.spans[at]),
            )
            for at in np.flatnonzero(self.spans).tolist()
        ]


class TurnValues:
    """One value for each turn of a table, and optionally for each span; 0 where not scored.

    The value of a token is its turn's plus those of the spans that cover it. Values of the same
    type and table can be added, and multiplied by a number. Mixing `Rewards` and `Advantages`
    raises TypeError.

    Args:
        table: the turns.
        values: float64 ``[N]``; copied.
        stamp: the deriver and its settings.
        spans: float64 ``[K]``, one for each span of the table; copied; None means zeros.

    Raises:
        InvalidInput: the shape is wrong, a value is not finite, or a turn that is not scored has
            a value.
    """

    __slots__ = ("spans", "stamp", "table", "values")

    table: TurnTable
    values: Doubles
    stamp: Stamp
    spans: Doubles | None

    def __init__(
        self,
        table: TurnTable,
        values: npt.ArrayLike,
        stamp: Stamp,
        *,
        spans: npt.ArrayLike | None = None,
    ) -> None:
        self.table = table
        self.stamp = stamp
        self.values = self._checked(values, np.arange(len(table)), "turns")
        self.spans = None if spans is None else self._checked(spans, table.span_turn, "spans")

    def _checked(self, values: npt.ArrayLike, turns: Ints, unit: str) -> Doubles:
        """Return a read-only copy of values on ``turns`` (rows of the table)."""
        array = np.array(values, dtype=np.float64)
        kind = type(self).__name__
        if array.shape != turns.shape:
            raise InvalidInput(
                f"{kind}: shape {array.shape}; the table has {turns.size} {unit}",
            )
        of = f"{kind} of {self.stamp.deriver}"
        if (bad := ~np.isfinite(array)).any():
            raise InvalidInput(f"{of}: {_where(self.table, turns[bad])} has {array[bad][0]}")
        if (stray := (array != 0) & ~self.table.scored[turns]).any():
            raise InvalidInput(
                f"{of}: {_where(self.table, turns[stray])} is not scored but has a value",
            )
        array.flags.writeable = False
        return array

    @property
    def kind(self) -> type[Rewards | Advantages]:
        """`Rewards` or `Advantages`."""
        return Rewards if isinstance(self, Rewards) else Advantages

    def of(self, session: str) -> Doubles:
        """Return float64 ``[turns]``, the values of one session.

        Raises:
            InvalidInput: the session is not in the table.
        """
        return self.session(session).turns

    def session(self, session: str) -> SessionValues:
        """Return the values of one session over its turns and spans.

        Raises:
            InvalidInput: the session is not in the table.
        """
        place = self.table.place(session)
        if place is None:
            raise InvalidInput(f"session {session} has no {type(self).__name__.lower()}")
        table = self.table
        starts = table.span_starts[place.start : place.stop + 1]
        if self.spans is None:
            return SessionValues(self.values[place], None, starts - starts[0], None)
        own = slice(int(starts[0]), int(starts[-1]))
        columns = table.span_kind[own], table.span_start[own], table.span_end[own]
        ids = np.stack(columns, axis=1)
        return SessionValues(self.values[place], self.spans[own], starts - starts[0], ids)

    def __add__(self, other: Self) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        if other.table is not self.table:
            raise InvalidInput("values of different tables can't be added: use one table")
        spans = [values for values in (self.spans, other.spans) if values is not None]
        return type(self)(
            self.table,
            self.values + other.values,
            add_stamps(self.stamp, other.stamp),
            spans=np.sum(spans, axis=0) if spans else None,
        )

    def __mul__(self, factor: float) -> Self:
        if not isinstance(factor, int | float):
            return NotImplemented
        spans = None if self.spans is None else self.spans * factor
        stamp = scale_stamp(factor, self.stamp)
        return type(self)(self.table, self.values * factor, stamp, spans=spans)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stamp.deriver!r}, {len(self.values)} turns)"


class Rewards(TurnValues):
    """The reward of each turn; their sum along a trajectory is its return."""

    __slots__ = ()


class Advantages(TurnValues):
    """The weight of each turn's tokens in a policy gradient; never summed over turns."""

    __slots__ = ()


def _where(table: TurnTable, turns: Ints) -> str:
    first = int(turns[0])
    return f"turn {table.turn[first]} of session {table.sessions[table.session[first]]}"


def _terms(stamp: Stamp) -> list[dict[str, Any]]:
    if stamp.settings.keys() == {"terms"}:
        return list(stamp.settings["terms"])
    return [{"factor": 1.0, "deriver": stamp.deriver, "settings": stamp.settings}]


def _sum_of(terms: list[dict[str, Any]]) -> Stamp:
    names = [
        t["deriver"] if t["factor"] == 1 else f"{t['factor']:g} * {t['deriver']}" for t in terms
    ]
    return Stamp(" + ".join(names), {"terms": terms})


def add_stamps(left: Stamp, right: Stamp) -> Stamp:
    """Return the stamp of a sum of values."""
    return _sum_of(_terms(left) + _terms(right))


def scale_stamp(factor: float, stamp: Stamp) -> Stamp:
    """Return the stamp of values times a number."""
    return _sum_of([term | {"factor": factor * term["factor"]} for term in _terms(stamp)])

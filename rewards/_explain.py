"""The terms that make up a turn's value."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trajgym.rewards._errors import DeriverFault
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.rewards._deriver import Deriver
    from trajgym.rewards._table import TurnTable

__all__ = ["Explained", "explain"]


class Explained(NamedTuple):
    """A turn's value and the terms that it is the sum of."""

    turn: int
    terms: dict[str, float]
    """Contributions by name; they add up to ``value``."""
    value: float
    spans: dict[str, float]
    """Values added on the tokens of spans, by span: ``tool_call[3:9]`` (response ids)."""


def explain(deriver: Deriver, table: TurnTable, session: str) -> list[Explained]:
    """Return each turn's value and terms for one session.

    Args:
        deriver: the deriver whose values are explained.
        table: the turns. It must contain the session's whole group, whose statistics the terms
            depend on.
        session: id.

    Raises:
        InvalidInput: the session is not in the table.
        DeriverFault: the terms do not add up to the values.
    """
    place = table.place(session)
    if place is None:
        raise InvalidInput(f"session {session} is not in the table")
    terms = {name: part[place].tolist() for name, part in deriver.terms(table).items()}
    derived = deriver.derive(table)
    values = derived.values[place]
    summed = np.sum(list(terms.values()), axis=0)
    if not np.allclose(summed, values, rtol=1e-9, atol=1e-12):
        first = int(np.argmax(np.abs(summed - values)))
        raise DeriverFault(
            f"{deriver.name}: the terms of turn {first} of session {session} add up to "
            f"{summed[first]}, its value is {values[first]}",
        )
    spans: dict[int, dict[str, float]] = defaultdict(dict)
    for turn, name, value in derived.session(session).named_spans():
        spans[turn][name] = value
    return [
        Explained(turn, {name: part[turn] for name, part in terms.items()}, value, spans[turn])
        for turn, value in enumerate(values.tolist())
    ]

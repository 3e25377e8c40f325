"""Derivers: pure functions from a table of turns to rewards or advantages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from trajgym.rewards._errors import UnknownDeriver
from trajgym.trajectory import InvalidInput, Stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trajgym.rewards._build import TableBuilder
    from trajgym.rewards._table import Doubles, PrefixRule, TurnTable
    from trajgym.rewards._values import Advantages, Rewards
    from trajgym.trajectory import Group, SessionTree

__all__ = ["Deriver", "get_deriver", "list_derivers"]

_GROUP = "trajgym.derivers"


class Deriver(BaseModel, ABC):
    """A pure function over the turns of sealed groups; its fields are its settings.

    Subclass it, name it, give it typed fields with defaults, and register the class under the
    entry-point group ``trajgym.derivers``. `check_deriver` tells whether it keeps the contract:
    the order of sessions does not matter, sessions that are not scored add nothing, values are
    finite, the table stays as it was.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    name: ClassVar[str]
    """Under which it is registered and stamped."""
    prefix_rule: ClassVar[PrefixRule] = "mean"
    """How the values of rival attempts combine on turns that they share."""
    group_relative: ClassVar[bool] = False
    """True if values compare the attempts of a group: equal outcomes then give exactly 0."""
    needs_digests: ClassVar[bool] = False
    """True if it reads ``table.observation`` or ``table.state``."""
    needs_texts: ClassVar[bool] = False
    """True if it reads ``table.text``."""
    needs_signals: ClassVar[tuple[str, ...]] = ()
    """Names of the signals that it reads with ``table.signal``."""

    def table(self, groups: Iterable[Group], sessions: Iterable[SessionTree]) -> TurnTable:
        """Return the table of these sessions with everything that this deriver reads."""
        from trajgym.rewards._table import TurnTable

        return TurnTable.build(
            groups,
            sessions,
            digests=self.needs_digests,
            texts=self.needs_texts,
            signals=self.needs_signals,
        )

    def pack(self, tree: SessionTree) -> dict[str, Any]:
        """Return a session's part of the table as JSON values, to be sent elsewhere.

        It has no ids and no messages, and is read by :meth:`unpack` of the same deriver.

        Raises:
            InvalidInput: a score or signal that is not finite or of the wrong type.
        """
        builder = self._builder()
        builder.add_session(tree)
        return builder.dump()

    def unpack(self, groups: Iterable[Group], sessions: Iterable[Mapping[str, Any]]) -> TurnTable:
        """Return the table of packed sessions, equal to that of :meth:`table`.

        Raises:
            InvalidInput: an open group, a session given twice, or packed for another deriver.
        """
        from trajgym.rewards._table import TurnTable

        builder = self._builder()
        for group in groups:
            builder.add_group(group)
        for packed in sessions:
            builder.load(packed)
        return TurnTable(**builder.columns())

    def _builder(self) -> TableBuilder:
        from trajgym.rewards._build import TableBuilder

        return TableBuilder(
            digests=self.needs_digests, texts=self.needs_texts, signals=self.needs_signals
        )

    @abstractmethod
    def derive(self, table: TurnTable) -> Rewards | Advantages:
        """Return a value for every turn of ``table``, 0 on turns that are not scored."""

    def terms(self, table: TurnTable) -> dict[str, Doubles]:
        """Return the parts of the turns' values by name, float64 ``[N]`` each; they add up."""
        return {self.name: self.derive(table).values}

    @property
    def stamp(self) -> Stamp:
        """Name and settings, as they go with every value and row."""
        return Stamp(self.name, self.model_dump(mode="json"))


def list_derivers() -> list[str]:
    """Return the names of every registered deriver, sorted."""
    from importlib import metadata

    return sorted({entry.name for entry in metadata.entry_points(group=_GROUP)})


def get_deriver(name: str, **settings: object) -> Deriver:
    """Return the deriver registered as ``name`` with these settings.

    Raises:
        UnknownDeriver: no such name, or it stands for something that is no deriver.
        InvalidInput: a setting that it does not have, or a value that does not fit.
    """
    from importlib import metadata

    found = next(iter(metadata.entry_points(group=_GROUP, name=name)), None)
    if found is None:
        raise UnknownDeriver(f"no deriver {name!r}; there are {', '.join(list_derivers())}")
    kind = found.load()
    if not (isinstance(kind, type) and issubclass(kind, Deriver)):
        raise UnknownDeriver(f"deriver {name!r} ({found.value}) is not a subclass of Deriver")
    try:
        return kind(**settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        known = ", ".join(kind.model_fields) or "none"
        raise InvalidInput(
            f"deriver {name}: setting {where}: {first['msg']} (settings: {known})",
        ) from error

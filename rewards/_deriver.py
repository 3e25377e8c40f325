"""Derivers: pure functions from a table of turns to rewards or advantages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from trajgym.rewards._errors import UnknownDeriver
from trajgym.trajectory import InvalidInput, Stamp, attempt_turns
from trajgym.trajectory._internal import entry_points, load_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trajgym.rewards._build import TableBuilder
    from trajgym.rewards._table import Doubles, PrefixRule, Scope, TurnTable
    from trajgym.rewards._values import Advantages, Rewards
    from trajgym.trajectory import Group, SessionTree, Turn

__all__ = ["Deriver", "get_deriver", "list_derivers"]

_GROUP = "trajgym.derivers"


class Deriver(BaseModel, ABC):
    """A pure function over the turns of sealed groups; its fields are its settings.

    Subclass it, name it, give it typed fields with defaults, and register the class under the
    entry-point group ``trajgym.derivers``. `check_deriver` checks the contract: the order of
    sessions does not matter, sessions that are not scored have no influence, nor have sessions
    outside the declared scope, values are finite, and the table is not changed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    name: ClassVar[str]
    """The name under which it is registered, and which its stamps have."""
    prefix_rule: ClassVar[PrefixRule] = "mean"
    """How the values of rival attempts combine on turns that they share."""
    group_relative: ClassVar[bool] = False
    """True if values compare the attempts of a group, so that equal outcomes give exactly 0."""
    depends_on: ClassVar[Scope] = "run"
    """What the values of a session depend on: the ``session`` itself and whether it left its
    group, its ``group``, or any session of the ``run``, which is always right but needs the whole
    run in memory. See :attr:`scope`."""
    needs_digests: ClassVar[bool] = False
    """True if it reads ``table.observation`` or ``table.state``."""
    needs_texts: ClassVar[bool] = False
    """True if it reads ``table.text``."""
    needs_signals: ClassVar[tuple[str, ...]] = ()
    """Names of the signals that it reads with ``table.signal``."""
    annotations: ClassVar[tuple[str, ...]] = ()
    """Signals of which an annotated session has at least one; see :meth:`missing`."""

    @property
    def scope(self) -> Scope:
        """What values depend on with these settings: ``depends_on``, unless it is overridden."""
        return self.depends_on

    def table(self, groups: Iterable[Group], sessions: Iterable[SessionTree]) -> TurnTable:
        """Return the table of these sessions with all columns that this deriver reads.

        All callers build the table with this method. An override chooses the columns by the
        arguments that it passes to :meth:`TurnTable.build`; :meth:`pack` and :meth:`unpack` use
        the same columns.
        """
        from trajgym.rewards._table import TurnTable

        return TurnTable.build(
            groups,
            sessions,
            digests=self.needs_digests,
            texts=self.needs_texts,
            signals=self.needs_signals,
        )

    def pack(self, tree: SessionTree) -> dict[str, Any]:
        """Return a session's part of the table as JSON values, to be sent to another process.

        It contains no token ids and no messages. :meth:`unpack` of the same deriver reads it.

        Raises:
            InvalidInput: a score or signal is not finite or has the wrong type.
        """
        builder = self._builder()
        builder.add_session(tree)
        return builder.dump()

    def unpack(self, groups: Iterable[Group], sessions: Iterable[Mapping[str, Any]]) -> TurnTable:
        """Return the table of packed sessions, equal to the one that :meth:`table` returns.

        Raises:
            InvalidInput: a group is open, a session is given twice, or a session was packed for
                another deriver.
        """
        from trajgym.rewards._table import TurnTable

        builder = self._builder()
        for group in groups:
            builder.add_group(group)
        for packed in sessions:
            builder.load(packed)
        return TurnTable(**builder.columns())

    def _builder(self) -> TableBuilder:
        """Return a builder of the columns of :meth:`table`, even if it is overridden."""
        from trajgym.rewards._build import TableBuilder

        columns = self.table([], [])
        return TableBuilder(
            digests=columns.digests is not None,
            texts=columns.texts is not None,
            signals=columns.signal_names,
        )

    def missing(self, tree: SessionTree) -> str:
        """Return what this deriver reads and a session lacks, or "" if nothing is missing.

        A deriver can't distinguish a signal of 0 from one that was never recorded. By default, a
        session with scored turns lacks ``annotations`` if none of its turns has one of them.
        """
        if not self.annotations or not (turns := _scored_turns(tree)):
            return ""
        found = any(name in turn.signals for turn in turns for name in self.annotations)
        return "" if found else f"no signal {' or '.join(map(repr, self.annotations))}"

    @abstractmethod
    def derive(self, table: TurnTable) -> Rewards | Advantages:
        """Return a value for every turn of ``table``, 0 on turns that are not scored."""

    def terms(self, table: TurnTable) -> dict[str, Doubles]:
        """Return the terms whose sum is each turn's value, by name, float64 ``[N]`` each."""
        return {self.name: self.derive(table).values}

    @property
    def stamp(self) -> Stamp:
        """Name and settings, which all its values and rows have."""
        return Stamp(self.name, self.model_dump(mode="json"))


def _scored_turns(tree: SessionTree) -> list[Turn]:
    """Return the turns of the attempts that have a score."""
    scored = [attempt for attempt in tree.attempts if attempt.status.scored and attempt.outcome]
    indices = {index for attempt in scored for index in attempt_turns(tree, attempt)}
    return [tree.turns[index] for index in sorted(indices)]


def list_derivers() -> list[str]:
    """Return the names of all registered derivers, sorted."""
    return sorted({entry.name for entry in entry_points(_GROUP)})


def get_deriver(name: str, **settings: object) -> Deriver:
    """Return the deriver registered as ``name`` with these settings.

    Raises:
        UnknownDeriver: no deriver has that name, or the registered object is not a deriver.
        InvalidInput: it has no such setting, a setting's value is invalid, or its package can't be
            imported.
    """
    found = next((entry for entry in entry_points(_GROUP) if entry.name == name), None)
    if found is None:
        raise UnknownDeriver(f"no deriver {name!r}; there are {', '.join(list_derivers())}")
    kind = load_entry(found)
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

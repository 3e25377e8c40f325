"""The parts that all exports share: the report, and a stream of rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.adapters._gate import Gate, check_allowances
from trajgym.adapters._group_rows import all_values, session_rows, without_id
from trajgym.trajectory import Dropped, InvalidInput, UnsupportedModality

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from trajgym.adapters._group_rows import Values
    from trajgym.adapters.exports._images import BlobReader, ImageForm
    from trajgym.rewards import Advantages, Rewards
    from trajgym.trajectory import Group, SessionTree, Task, TrainingRow

__all__ = ["Export", "ExportReport", "Membership", "SessionRows", "need", "rows_of", "run_export"]


@dataclass(slots=True)
class ExportReport:
    """What an export wrote and what it left out.

    Attributes:
        name: of the export.
        written: number of records written (rows, lines, pairs).
        dropped: what was left out, with session, attempt and reason.
        files: the files written.
        synthetic: number of records from a fake engine.
        lost: what the sessions have and a foreign format can't hold, with the number of sessions
            that have it.
    """

    name: str
    written: int = 0
    dropped: list[Dropped] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    synthetic: int = 0
    lost: dict[str, int] = field(default_factory=dict)

    def count(self, *, synthetic: bool) -> None:
        """Count one written record."""
        self.written += 1
        self.synthetic += synthetic

    def drop(self, session: str, attempt: int | None, reason: str) -> None:
        """Add an entry to :attr:`dropped`; the reason is stored without the session's id."""
        self.dropped.append(Dropped(session, attempt, without_id(reason, session)))


class Membership:
    """Which sessions left their groups, and which groups are still open."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self.sizes: dict[str, int] = {}
        self._open: set[str] = set()
        self._left: dict[str, str] = {}
        for group in groups:
            self.sizes[group.id] = len(group.members)
            if not group.sealed:
                self._open.add(group.id)
            for member in group.members:
                if member.left:
                    self._left[member.session] = member.left

    def refusal(self, tree: SessionTree) -> str | None:
        """Return why a session can't be used, or None if it can."""
        if left := self._left.get(tree.record.id):
            return f"left its group ({left})"
        if tree.record.group in self._open:
            return "its group is not sealed"
        return None


@dataclass(slots=True, kw_only=True)
class Export:
    """One run of an export.

    Args:
        sessions: read once, one at a time.
        membership: the sessions' membership in groups.
        out: directory for the files.
        values: values for the rows; at most one of rewards and one of advantages.
        report: filled while writing.
        blobs: reads stored images; without it no image can be written.
        allow: exceptions that the `Gate` makes.
        task: returns a task by its id, None if it is not known.
    """

    sessions: Iterable[SessionTree]
    membership: Membership
    out: Path
    values: Sequence[Values]
    report: ExportReport
    blobs: BlobReader | None = None
    allow: Collection[str] = ()
    task: Callable[[str], Task | None] = lambda _: None

    def value(self, kind: type[Rewards | Advantages]) -> bool:
        """Return whether values of this kind were given."""
        return any(values.kind is kind for values in self.values)

    def file(self, name: str) -> Path:
        """Return the path of a file of this export, and add it to the report."""
        path = self.out / name
        self.report.files.append(path)
        return path


def run_export(
    name: str,
    write: Callable[..., None],
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    out: Path,
    *,
    values: Values | Sequence[Values] = (),
    blobs: BlobReader | None = None,
    allow: Collection[str] = (),
    task: Callable[[str], Task | None] = lambda _: None,
    **options: Any,
) -> ExportReport:
    """Run one export and return its report.

    Args:
        name: for the report.
        write: the export's function.
        sessions: read once, as a stream.
        groups: their groups.
        out: directory, created if missing.
        values: at most one of rewards and one of advantages.
        blobs: the ``blob`` method of the run.
        allow: exceptions that the `Gate` makes.
        task: returns a task by its id, None if it is not known.
        **options: passed to ``write``.

    Raises:
        InvalidInput: two values of one kind were given, or ``write`` refuses its arguments.
    """
    given = all_values(values)
    if len({one.kind for one in given}) != len(given):
        raise InvalidInput(f"export {name}: rows carry one Rewards and one Advantages; add them up")
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    report = ExportReport(name)
    run = Export(
        sessions=sessions,
        membership=Membership(groups),
        out=out,
        values=given,
        report=report,
        blobs=blobs,
        allow=check_allowances(allow),
        task=task,
    )
    write(run, **options)
    return report


def need(export: Export, kind: type[Rewards | Advantages], example: str) -> None:
    """Check that the export was given values of a kind.

    Raises:
        InvalidInput: it was not.
    """
    if not export.value(kind):
        raise InvalidInput(
            f"export {export.report.name} needs {kind.__name__}: pass values from a deriver, for "
            f"example {example}",
        )


class SessionRows(NamedTuple):
    """A session and its checked rows with values."""

    tree: SessionTree
    rows: list[TrainingRow]


def rows_of(
    export: Export, *, images: ImageForm = "none", gate: Gate | None = None
) -> Iterator[SessionRows]:
    """Yield each session with its rows; sessions and attempts without rows go into the report.

    If one row of a session is refused, the whole session is left out, so that no session is
    exported in part.

    Args:
        export: what to write.
        images: how images are treated. Sessions with images are refused if it is ``none``, or if it
            is ``bytes`` and the export has no blobs.
        gate: refuses sessions that a trainer must not train on.
    """
    for tree in export.sessions:
        name = tree.record.id
        if reason := export.membership.refusal(tree):
            export.report.drop(name, None, reason)
            continue
        if gate is not None and (reason := gate.refusal(tree)):
            export.report.drop(name, None, reason)
            continue
        try:
            rows, dropped = session_rows(tree, export.values, images=images != "none")
            if images == "bytes" and export.blobs is None and any(row.images for row in rows):
                raise UnsupportedModality(
                    f"session {name}: it has images; pass blobs=run.blob to export",
                )
        except InvalidInput as error:
            alone = tree.record.group is None and bool(export.values)
            reason = "belongs to no group, and values are derived in groups"
            export.report.drop(name, None, reason if alone else str(error))
            continue
        export.report.dropped += dropped
        if rows:
            yield SessionRows(tree, rows)

"""What all exports share: the report, and rows as a stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from trajgym.rewards import Advantages, Rewards, apply
from trajgym.trajectory import (
    Dropped,
    InvalidInput,
    UnsupportedModality,
    build_rows,
    validate_row,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from trajgym.adapters._images import BlobReader, ImageDoor
    from trajgym.trajectory import Group, SessionTree, TrainingRow

__all__ = ["Export", "ExportReport", "Membership", "SessionRows", "need", "rows_of"]


@dataclass(slots=True)
class ExportReport:
    """What an export wrote and what it left out.

    Attributes:
        name: of the export.
        written: number of records (rows, lines, pairs).
        dropped: what was left out, each with its session, attempt and reason.
        files: the files written.
        synthetic: how many of the records come from a fake engine.
    """

    name: str
    written: int = 0
    dropped: list[Dropped] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    synthetic: int = 0

    def count(self, *, synthetic: bool) -> None:
        """Note that one record was written."""
        self.written += 1
        self.synthetic += synthetic

    def drop(self, session: str, attempt: int | None, reason: str) -> None:
        """Note that something was left out."""
        self.dropped.append(Dropped(session, attempt, reason))


class Membership:
    """Which sessions their groups no longer count, and which groups are still open."""

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
        """Return why a session's attempts can't be used, None if they can."""
        if left := self._left.get(tree.record.id):
            return f"left its group ({left})"
        if tree.record.group in self._open:
            return f"group {tree.record.group} is not sealed"
        return None


@dataclass(slots=True, kw_only=True)
class Export:
    """One run of an export.

    Args:
        sessions: read once, one at a time.
        membership: what the groups say about them.
        out: folder for the files.
        values: what rows shall carry; at most one `Rewards` and one `Advantages`.
        report: filled while writing.
        blobs: reads stored images; without it none can be written.
    """

    sessions: Iterable[SessionTree]
    membership: Membership
    out: Path
    values: Sequence[Rewards | Advantages]
    report: ExportReport
    blobs: BlobReader | None = None

    def value(self, kind: type[Rewards | Advantages]) -> bool:
        """Return whether values of this kind were given."""
        return any(isinstance(values, kind) for values in self.values)

    def file(self, name: str) -> Path:
        """Return the path of a file of this export, and note it in the report."""
        path = self.out / name
        self.report.files.append(path)
        return path


def need(export: Export, kind: type[Rewards | Advantages], example: str) -> None:
    """Refuse an export that lacks the values it is made of.

    Raises:
        InvalidInput: no values of that kind were given.
    """
    if not export.value(kind):
        raise InvalidInput(
            f"export {export.report.name} needs {kind.__name__}: pass values from a deriver, for "
            f"example {example}",
        )


class SessionRows(NamedTuple):
    """A session and its rows, values applied and checked."""

    tree: SessionTree
    rows: list[TrainingRow]


def rows_of(export: Export, *, images: ImageDoor = "none") -> Iterator[SessionRows]:
    """Yield the rows of one session after the other; what has none goes into the report.

    A session is left out whole if one of its rows is refused: half a session is not what the
    agent did.

    Args:
        export: what to write.
        images: what is done with images. Sessions that show some are refused where nothing is,
            or where their bytes are wanted and no blobs are there.
    """
    for tree in export.sessions:
        name = tree.record.id
        if reason := export.membership.refusal(tree):
            export.report.drop(name, None, reason)
            continue
        try:
            rows, dropped = build_rows(tree, images=images != "none")
            if images == "bytes" and export.blobs is None and any(row.images for row in rows):
                raise UnsupportedModality(
                    f"session {name}: its rows hold images; pass blobs=run.blob to export",
                )
            for values in export.values:
                rows = apply(rows, values)
            for row in rows:
                validate_row(row)
        except InvalidInput as error:
            export.report.drop(name, None, str(error))
            continue
        export.report.dropped += dropped
        if rows:
            yield SessionRows(tree, rows)

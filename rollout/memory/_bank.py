"""A memory: records that are found by the similarity of their tasks, and its file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from trajgym.rollout.memory._records import Effect, MemoryRecord, Record, ToolNote
from trajgym.rollout.memory._similarity import SimilarityIndex
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from trajgym.rollout.memory._effect import MemoryEffect
    from trajgym.rollout.memory._records import Kind

__all__ = ["Match", "MemoryBank"]

_FORMAT = "trajgym-memory"
_VERSION = 1
_RECORD: TypeAdapter[MemoryRecord] = TypeAdapter(MemoryRecord)
_T = TypeVar("_T")


class Match(NamedTuple):
    """A record that was found."""

    record: MemoryRecord
    similarity: float
    """Of the tasks' texts, 0.0 to 1.0."""


class MemoryBank:
    """Records by id, in the order in which they were added.

    Args:
        records: the first ones.

    Raises:
        InvalidInput: two records have the same id.
    """

    def __init__(self, records: Iterable[MemoryRecord] = ()) -> None:
        self._records: dict[str, MemoryRecord] = {}
        self._index: tuple[list[MemoryRecord], SimilarityIndex] | None = None
        for record in records:
            self.insert(record)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[MemoryRecord]:
        return iter(self._records.values())

    def __contains__(self, record_id: object) -> bool:
        return record_id in self._records

    def __getitem__(self, record_id: str) -> MemoryRecord:
        try:
            return self._records[record_id]
        except KeyError:
            raise InvalidInput(f"the memory has no record {record_id!r}") from None

    def get(self, record_id: str) -> MemoryRecord | None:
        """Return a record; None if there is none with this id."""
        return self._records.get(record_id)

    # Changes ------------------------------------------------------------------------------

    def insert(self, record: MemoryRecord) -> None:
        """Add a record.

        Raises:
            InvalidInput: there is a record with its id.
        """
        if record.id in self._records:
            raise InvalidInput(f"the memory already has a record {record.id!r}; update it")
        self._put(record)

    def update(self, record: MemoryRecord) -> None:
        """Replace the record with this id.

        Raises:
            InvalidInput: there is none.
        """
        self[record.id]
        self._put(record)

    def delete(self, record_id: str) -> MemoryRecord:
        """Remove a record, and return it.

        Raises:
            InvalidInput: there is none.
        """
        record = self[record_id]
        del self._records[record_id]
        self._index = None
        return record

    def retire(self, record_id: str, reason: str) -> None:
        """Keep a record with its evidence, but retrieve it no longer.

        Raises:
            InvalidInput: there is none, or the reason is empty.
        """
        if not reason:
            raise InvalidInput(f"record {record_id!r} is retired for a reason: give it")
        self._put(self[record_id].model_copy(update={"retired": reason}))

    def merge(self, least: float = 0.8) -> list[tuple[str, str]]:
        """Merge records of one kind whose tasks and texts are similar.

        The record with more evidence keeps its id and text, and gets the other's evidence, tasks
        and id. The notes on a tool are merged whatever their texts. Retired records are not merged,
        nor is a measured effect carried over: it belonged to another text.

        Args:
            least: least cosine of the records' words, over 0 and at most 1.

        Returns:
            Pairs of the kept and the merged id.

        Raises:
            InvalidInput: ``least`` is out of range.
        """
        if not 0 < least <= 1:
            raise InvalidInput(f"least is {least}; a similarity is over 0 and at most 1")
        active = [record for record in self if not record.retired]
        # Those with most evidence absorb the others, independently of the order in the file.
        active.sort(key=lambda record: (-len(record.evidence), record.id))
        index = SimilarityIndex(f"{record.query}\n{record.text}" for record in active)
        gone: set[int] = set()
        pairs: list[tuple[str, str]] = []
        for place, record in enumerate(active):
            if place in gone:
                continue
            near = index.search(f"{record.query}\n{record.text}", least=least)
            alike = {row for row, _ in near if _mergeable(record, active[row])}
            if isinstance(record, ToolNote):
                alike = {row for row, other in enumerate(active) if _mergeable(record, other)}
            kept = self[record.id]
            for row in sorted(alike - gone - {place}):
                gone.add(row)
                kept = _joined(kept, self.delete(active[row].id))
                pairs.append((record.id, active[row].id))
            gone.add(place)
            self._put(kept)
        return pairs

    def apply(self, effect: MemoryEffect, *, least_tasks: int = 8, below: float = 0.0) -> list[str]:
        """Record measured effects, and retire records that do harm.

        Args:
            effect: what was measured.
            least_tasks: records that fewer tasks were attempted with and without are kept.
            below: a record is retired if the upper end of its effect's interval is below this.

        Returns:
            The ids of the records that were retired now.
        """
        retired = []
        for name, found in effect.records.items():
            if name not in self:
                continue
            measured = Effect(value=found.value, low=found.low, high=found.high, tasks=found.tasks)
            self._put(self[name].model_copy(update={"effect": measured}))
            harmful = found.high is not None and found.high < below
            if harmful and found.tasks >= least_tasks and not self[name].retired:
                self.retire(
                    name,
                    f"effect {found.value:+.2f} on {found.tasks} tasks, at most {found.high:+.2f}",
                )
                retired.append(name)
        return retired

    def _put(self, record: MemoryRecord) -> None:
        self._records[record.id] = record
        self._index = None

    # Retrieval ----------------------------------------------------------------------------

    def search(
        self,
        query: str,
        k: int = 3,
        *,
        kinds: Collection[Kind] | None = None,
        without_task: str | None = None,
        least: float = 0.0,
    ) -> list[Match]:
        """Return the records whose tasks are most similar to a text, best first.

        Retired records, and those whose task shares no word with the query, are not returned.

        Args:
            query: text of a task.
            k: most records to return.
            kinds: only records of these kinds.
            without_task: leave out what was learnt from the task with this id.
            least: least similarity.
        """
        if self._index is None:
            active = [record for record in self if not record.retired]
            self._index = active, SimilarityIndex(record.query for record in active)
        records, index = self._index

        def wanted(row: int) -> bool:
            record = records[row]
            if kinds is not None and record.kind not in kinds:
                return False
            return without_task is None or without_task not in record.tasks

        near = index.search(query, k, least=least, wanted=wanted)
        return [Match(records[row], similarity) for row, similarity in near]

    # The file -----------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory as JSON lines: a header, then one record a line.

        An existing file is replaced at once; a reader sees the old or the new one.

        Raises:
            OSError: the file can't be written.
        """
        path = Path(path)
        part = path.with_name(f".{path.name}.part")
        header = {"format": _FORMAT, "version": _VERSION, "records": len(self)}
        try:
            with part.open("w", encoding="utf-8", errors="replace") as file:
                file.write(json.dumps(header) + "\n")
                for record in self:
                    line = {"kind": record.kind, **_RECORD.dump_python(record, mode="json")}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MemoryBank:
        """Read a file that :meth:`save` wrote.

        Raises:
            InvalidInput: there is no such file, it is no memory or a newer version's, it was cut
                off, or a record is malformed; the message names the line.
        """
        try:
            with Path(path).open(encoding="utf-8") as file:
                lines = file.read().split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{path}: no memory can be read: {error}") from error
        if lines and not lines[-1]:
            lines.pop()
        count = _check_header(lines[0] if lines else "", str(path))
        if len(lines) - 1 != count:
            raise InvalidInput(
                f"{path}: the header promises {count} records and there are {len(lines) - 1}; the "
                "file was cut off or edited"
            )
        bank = cls()
        for number, line in enumerate(lines[1:], 2):
            try:
                bank.insert(_RECORD.validate_json(line))
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                where = ".".join(map(str, first["loc"])) or "record"
                raise InvalidInput(f"{path}: line {number}: {where}: {first['msg']}") from error
            except InvalidInput as error:
                raise InvalidInput(f"{path}: line {number}: {error}") from error
        return bank


def _check_header(line: str, where: str) -> int:
    try:
        header: Any = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise InvalidInput(f"{where}: not a memory; `trajgym memory build` writes one")
    version, count = header.get("version"), header.get("records")
    if version != _VERSION or not isinstance(count, int):
        raise InvalidInput(
            f"{where}: a memory of version {version}; this version of trajgym reads {_VERSION}"
        )
    return count


def _mergeable(one: Record, other: Record) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, ToolNote) and isinstance(other, ToolNote):
        return one.tool == other.tool
    # A case that worked is not the same as one that did not, however similar their words.
    return getattr(one, "positive", None) == getattr(other, "positive", None)


def _joined(kept: MemoryRecord, other: MemoryRecord) -> MemoryRecord:
    update: dict[str, Any] = {
        "tasks": _union(kept.tasks, other.tasks),
        "evidence": _union(kept.evidence, other.evidence),
        "merged": _union(kept.merged, (other.id, *other.merged)),
        "effect": None,
    }
    if isinstance(kept, ToolNote) and isinstance(other, ToolNote):
        update["calls"] = _sum(kept.calls, other.calls)
        update["errors"] = _sum(kept.errors, other.errors)
        update["query"] = "\n".join(_union((kept.query,), (other.query,)))
        update["text"] = kept.model_copy(update=update).written
    return kept.model_copy(update=update)


def _union(one: tuple[_T, ...], other: tuple[_T, ...]) -> tuple[_T, ...]:
    return (*one, *(item for item in other if item not in one))


def _sum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}

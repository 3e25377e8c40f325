"""Files that are written as a stream and appear only once they are complete."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = ["JsonLines", "Parquet", "Sink"]

_ROWS_PER_GROUP = 1024
_VALUES_PER_GROUP = 1 << 20


class Sink(ABC):
    """Writes records one by one; the file is renamed into place if the ``with`` block succeeds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._part = path.with_name(f".{path.name}.part")

    @abstractmethod
    def write(self, record: dict[str, Any]) -> None:
        """Add one record."""

    @abstractmethod
    def _close(self, *, complete: bool) -> None:
        """Write buffered records if ``complete``, and close the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._close(complete=kind is None)
            if kind is None:
                self._part.replace(self.path)
        finally:
            self._part.unlink(missing_ok=True)


class JsonLines(Sink):
    """One JSON object per line, in UTF-8."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = self._part.open("w", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Add one line.

        Raises:
            InvalidInput: a value can't be written as JSON or UTF-8.
        """
        try:
            line = json.dumps(record, ensure_ascii=False, allow_nan=False)
            line.encode("utf-8")
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"session {record.get('session')} can't be written as JSON: {error}"
            ) from error
        self._file.write(line + "\n")

    def _close(self, *, complete: bool) -> None:
        with self._file as file:
            if complete:
                file.flush()
                os.fsync(file.fileno())


class Parquet(Sink):
    """Columns of numbers, lists of numbers and strings, written in bounded row groups.

    Args:
        path: of the file.
        columns: pyarrow type by column, as a string: ``int32``, ``float``, ``string``, ``bool``,
            ``binary``, and ``list:int32`` and the like for one-dimensional arrays; ``?`` at the end
            allows None.

    Raises:
        MissingExtra: pyarrow is not installed.
    """

    def __init__(self, path: Path, columns: dict[str, str]) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise MissingExtra("pyarrow", "data") from error
        super().__init__(path)
        self._pa = pa
        self._schema = pa.schema([_field(pa, name, kind) for name, kind in columns.items()])
        self._writer = pq.ParquetWriter(self._part, self._schema)
        self._records: list[dict[str, Any]] = []
        self._values = 0

    def write(self, record: dict[str, Any]) -> None:
        """Add one row; its keys must be exactly the columns."""
        self._records.append(record)
        self._values += sum(map(_values_of, record.values()))
        if len(self._records) >= _ROWS_PER_GROUP or self._values >= _VALUES_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        columns = [
            _column(self._pa, field, [record[field.name] for record in self._records])
            for field in self._schema
        ]
        self._writer.write_table(self._pa.Table.from_arrays(columns, schema=self._schema))
        self._records.clear()
        self._values = 0

    def _close(self, *, complete: bool) -> None:
        try:
            if complete and self._records:
                self._flush()
        finally:
            self._writer.close()


def _values_of(value: object) -> int:
    """Return the memory that a value takes until its row group is written, in units of 4 bytes."""
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, list):
        return sum(len(item) for item in value if isinstance(item, bytes)) // 4
    return 0


def _field(pa: Any, name: str, kind: str) -> Any:
    nullable = kind.endswith("?")
    kind = kind.removesuffix("?")
    inner = kind.removeprefix("list:")
    arrow = pa.type_for_alias(inner)
    return pa.field(name, pa.list_(arrow) if inner != kind else arrow, nullable=nullable)


def _column(pa: Any, field: Any, values: list[Any]) -> Any:
    flat_list = pa.types.is_list(field.type) and not pa.types.is_binary(field.type.value_type)
    if not flat_list or any(value is None for value in values):
        return pa.array(values, type=field.type)
    arrays = [np.asarray(value) for value in values]
    offsets = np.zeros(len(arrays) + 1, dtype=np.int32)
    np.cumsum([array.size for array in arrays], out=offsets[1:])
    flat = pa.array(np.concatenate(arrays), type=field.type.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, type=field.type)

"""The tables of a data set, their columns, and their files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["FORMAT", "TABLES", "JsonText", "TableWriter", "arrow", "read_table"]

FORMAT = 1
"""Version of the tables, which every file states."""

JsonText = "json"
"""Column type of free-form values: JSON text, so that no field is filled in or merged."""

_SEGMENTS = "list<length:int64, version_low:int64, version_high:int64, sampled:bool>"
_SPANS = "list<kind:string, start:int64, end:int64, call_id:string>"
_IMAGES = "list<start:int64, end:int64, blob:string, processor:string>"
_ATTEMPTS = (
    "list<index:int64, forked_at:int64, leaf:int64, status:string, cause:string, score:float64, "
    "passed:bool, details:string, error:string, ended_at:float64>"
)

TABLES: dict[str, dict[str, str]] = {
    "meta": {"key": "string", "value": "string"},
    "tasks": {"id": "string", "prompt": "string", "data": JsonText},
    "sessions": {
        "id": "string",
        "task": "string",
        "env": JsonText,
        "group": "string",
        "sample": "int64",
        "seed": "int64",
        "tools": JsonText,
        "budgets": JsonText,
        "labels": JsonText,
        "created_at": "float64",
        "turns": "int64",
        "attempts": _ATTEMPTS,
    },
    "turns": {
        "session": "string",
        "index": "int64",
        "parent": "int64",
        "edge": "string",
        "attempt": "int64",
        "agent": "string",
        "role": "string",
        "role_reason": "string",
        "kept": "int64",
        "context": JsonText,
        "message": JsonText,
        "observation": JsonText,
        "calls": JsonText,
        "reward": "float64",
        "done": "bool",
        "signals": JsonText,
        "finish": "string",
        "usage": JsonText,
        "sampling": JsonText,
        "policy": "string",
        "synthetic": "bool",
        "prompt_kept": "int64",
        "prompt_ids": "list<int32>",
        "response_ids": "list<int32>",
        "logprobs": "list<float32>",
        "segments": _SEGMENTS,
        "spans": _SPANS,
        "token_images": _IMAGES,
        "snapshot": "string",
        "started_at": "float64",
        "policy_seconds": "float64",
        "env_seconds": "float64",
        "returns": "list<int64>",
        "delivery": "string",
        "wire": JsonText,
    },
    "groups": {
        "id": "string",
        "task": "string",
        "planned": "int64",
        "sealed": "bool",
        "members": "list<session:string, sample:int64, left:string>",
    },
    "annotations": {
        "session": "string",
        "turn": "int64",
        "source": "string",
        "signals": JsonText,
    },
    "values": {"session": "string", "name": "string", "body": "binary"},
    "outcomes": {
        "session": "string",
        "name": "string",
        "attempt": "int64",
        "score": "float64",
        "passed": "bool",
        "details": JsonText,
    },
    "images": {"hash": "string", "media_type": "string", "image": "image"},
    "blobs": {"hash": "string", "media_type": "string", "data": "binary"},
}
"""Columns and types by table; each table is a configuration of the data set."""

_BYTES_PER_GROUP = 32 << 20
_BYTES_PER_FILE = 512 << 20
_ROWS_PER_GROUP = 4096


def arrow() -> Any:
    """Return pyarrow.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data") from error
    return pa


@dataclass(slots=True)
class TableWriter:
    """Writes rows of one table as numbered files of bounded row groups.

    Args:
        folder: of the data set.
        name: of the table.
    """

    folder: Path
    name: str
    rows: int = 0
    _pending: list[dict[str, Any]] = field(default_factory=list)
    _size: int = 0
    _written: int = 0
    _files: int = 0
    _writer: Any = None

    def write(self, row: dict[str, Any]) -> None:
        """Add a row, whose keys are the columns."""
        self.rows += 1
        self._pending.append(row)
        self._size += 64 + sum(map(_bytes_of, row.values()))
        if self._size >= _BYTES_PER_GROUP or len(self._pending) >= _ROWS_PER_GROUP:
            self._flush()

    def close(self) -> None:
        """Write what is pending. A table without rows has no file."""
        if self._pending:
            self._flush()
        self._end()

    def _flush(self) -> None:
        pa = arrow()
        if self._writer is None:
            path = self.folder / "data" / self.name / f"{self._files:05}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pa.parquet.ParquetWriter(path, _schema(pa, self.name))
        try:
            table = pa.Table.from_pylist(self._pending, schema=_schema(pa, self.name))
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise InvalidInput(f"data set: a row of {self.name!r} can't be written: {error}") from (
                error
            )
        self._writer.write_table(table)
        self._written += self._size
        self._pending.clear()
        self._size = 0
        if self._written >= _BYTES_PER_FILE:
            self._end()

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._files += 1
        self._writer, self._written = None, 0


def read_table(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, a bounded number at a time; none if it has no files.

    Raises:
        InvalidInput: a file is damaged, of another format, or lacks a column.
    """
    pa = arrow()
    for path in sorted((folder / "data" / name).glob("*.parquet")):
        try:
            with pa.parquet.ParquetFile(path) as file:
                _check(pa, path, name, file.schema_arrow)
                for batch in file.iter_batches(batch_size=128, columns=list(TABLES[name])):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise InvalidInput(f"{path}: can't be read: {error}") from error


def _check(pa: Any, path: Path, name: str, found: Any) -> None:
    stated = (found.metadata or {}).get(b"trajgym")
    if stated != str(FORMAT).encode():
        raise InvalidInput(
            f"{path}: not a table of a trajgym data set of format {FORMAT}; write it with "
            "trajgym dataset export"
        )
    for column in _schema(pa, name):
        if found.get_field_index(column.name) < 0 or found.field(column.name).type != column.type:
            raise InvalidInput(f"{path}: column {column.name!r} is missing or not {column.type}")


def _schema(pa: Any, name: str) -> Any:
    columns = TABLES[name]
    schema = pa.schema([(column, _type(pa, kind)) for column, kind in columns.items()])
    metadata = {"trajgym": str(FORMAT)}
    if "image" in columns.values():
        features = {
            column: {"_type": "Image"} if kind == "image" else {"dtype": "string", "_type": "Value"}
            for column, kind in columns.items()
        }
        metadata["huggingface"] = json.dumps({"info": {"features": features}})
    return schema.with_metadata(metadata)


def _type(pa: Any, kind: str) -> Any:
    if kind == "image":  # as `datasets` stores them
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    if kind == JsonText:
        return pa.string()
    if not kind.startswith("list<"):
        return pa.type_for_alias(kind)
    inner = kind[len("list<") : -1]
    if ":" not in inner:
        return pa.list_(pa.type_for_alias(inner))
    pairs = [part.split(":") for part in inner.split(", ")]
    return pa.list_(pa.struct([(key, pa.type_for_alias(alias)) for key, alias in pairs]))


def _bytes_of(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_bytes_of, value.values()))
    if isinstance(value, list):
        return (
            sum(map(_bytes_of, value)) if value and isinstance(value[0], dict) else 4 * len(value)
        )
    return getattr(value, "nbytes", 8)

"""Training rows written to parquet and read back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.adapters.exports._files import Parquet
from trajgym.adapters.exports._stream import rows_of
from trajgym.trajectory import ImageRef, RowSpan, Stamp, TrainingRow
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trajgym.adapters.exports._stream import Export

__all__ = ["COMMON", "common", "export_rows", "read_rows"]

COMMON = {
    "session": "string",
    "group": "string?",
    "attempt": "int32",
    "turns": "list:int32",
    "weight": "double",
    "temperature": "double?",
    "logprob_mode": "string",
    "synthetic": "bool",
}
"""Columns that every parquet file of rows has beside the trainer's own."""

_ARRAYS = {
    "input_ids": "int32",
    "loss_mask": "bool",
    "logprobs": "float",
    "version_low": "int32",
    "version_high": "int32",
    "turn_ids": "int32",
    "reward": "float",
    "advantage": "float",
}
_DTYPES = {"int32": np.int32, "bool": np.bool_, "float": np.float32}
_OPTIONAL = ("reward", "advantage")


def common(row: TrainingRow) -> dict[str, Any]:
    """Return the values of the `COMMON` columns."""
    values = {name: getattr(row, name) for name in COMMON}
    return values | {"turns": np.array(row.turns, dtype=np.int32)}


def export_rows(export: Export) -> None:
    """Write ``rows.parquet``: every array and field of every `TrainingRow`, unshifted.

    Images are written as references; ``row_inputs`` makes a model's inputs from them and the run.
    """
    columns = COMMON | {
        name: f"list:{kind}{'?' if name in _OPTIONAL else ''}" for name, kind in _ARRAYS.items()
    }
    columns |= {"reward_stamp": "string?", "advantage_stamp": "string?"}
    columns |= {"images": "string", "spans": "string"}
    with Parquet(export.file("rows.parquet"), columns) as sink:
        for _, rows in rows_of(export, images="refs"):
            for row in rows:
                record = common(row) | {name: getattr(row, name) for name in _ARRAYS}
                for name in _OPTIONAL:
                    record[f"{name}_stamp"] = _dump(getattr(row, f"{name}_stamp"))
                record["images"] = json.dumps(row.images)
                record["spans"] = json.dumps(row.spans)
                sink.write(record)
                export.report.count(synthetic=row.synthetic)


def read_rows(path: Path) -> Iterator[TrainingRow]:
    """Yield the rows of a ``rows.parquet``, one row group in memory at a time.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra("pyarrow", "data") from error
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=256):
            for record in batch.to_pylist():
                yield _row(record)


def _row(record: dict[str, Any]) -> TrainingRow:
    for name, kind in _ARRAYS.items():
        if record[name] is not None:
            record[name] = np.array(record[name], dtype=_DTYPES[kind])
    for name in _OPTIONAL:
        record[f"{name}_stamp"] = _load(record[f"{name}_stamp"])
    record["turns"] = tuple(record["turns"])
    record["images"] = tuple(ImageRef(*image) for image in json.loads(record["images"]))
    record["spans"] = tuple(RowSpan(*span) for span in json.loads(record.get("spans", "[]")))
    return TrainingRow(**record)


def _dump(stamp: Stamp | None) -> str | None:
    return None if stamp is None else json.dumps(stamp._asdict())


def _load(text: str | None) -> Stamp | None:
    return None if text is None else Stamp(**json.loads(text))

"""Reading records (JSON objects) from files, data sets and generators, one at a time."""

from __future__ import annotations

import csv
import importlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from trajgym.trajectory import InvalidInput, Task
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Record", "Source", "read_dataset", "read_records"]

Items: TypeAlias = "Iterable[Task | Mapping[str, Any]]"
Source: TypeAlias = "str | Path | Items | Callable[[], Items]"
"""Where records come from; see :func:`trajgym.envs.load_tasks`."""

_SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")
_DATASETS = "hf:"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_ROWS = 1024
"""Number of rows of a Parquet file that are decoded together."""


class Record(NamedTuple):
    """A JSON object and its position in the source."""

    where: str
    """File and line or row, for errors."""
    value: dict[str, Any]
    table: str = ""
    """Name of the table that it is a row of; empty for JSON documents and generators."""
    row: int = 0


def read_records(source: Source) -> Iterator[Record]:
    """Yield the records of a source; see :func:`trajgym.envs.load_tasks` for what it may be.

    Raises:
        InvalidInput: nothing there, another format, or something that is not an object.
        MissingExtra: the format needs a package that is not installed.
    """
    if not isinstance(source, str | Path):
        return _generated(source() if callable(source) else source, "item")
    if isinstance(source, str):
        if source.startswith(_DATASETS):
            return read_dataset(source.removeprefix(_DATASETS))
        if _FUNCTION.fullmatch(source) and not Path(source).exists():
            return _generated(_called(source), source)
    path = Path(source)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES)
        return chain.from_iterable(_file(file) for file in files)
    return _file(path)


def read_dataset(name: str) -> Iterator[Record]:
    """Yield the rows of a Hugging Face data set, streamed from its cache on disk.

    Args:
        name: ``NAME:SPLIT``, ``NAME/CONFIG:SPLIT``, or ``FOLDER:SPLIT`` for a folder of data files
            or one that ``save_to_disk`` wrote.

    Raises:
        InvalidInput: the name is malformed, or there is no such data set or split.
        MissingExtra: `datasets` is not installed.
    """
    where, _, split = name.rpartition(":")
    if not where or not split:
        raise InvalidInput(f"hf:{name}: write hf:NAME:SPLIT or hf:NAME/CONFIG:SPLIT")
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("datasets", "data") from error
    try:
        rows = _loaded(datasets, where, split)
    except Exception as error:
        # boundary: the loader raises errors of many libraries
        raise InvalidInput(
            f"hf:{name}: can't be loaded: {type(error).__name__}: {error}"
        ) from error
    table = Path(where).name
    for row, record in enumerate(rows):
        yield Record(f"hf:{name}[{row}]", dict(record), table, row)


def _loaded(datasets: Any, where: str, split: str) -> Any:
    folder = Path(where)
    if folder.exists():
        if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
            saved = datasets.load_from_disk(where)
            return saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        return datasets.load_dataset(where, split=split)
    parts = where.split("/")
    config = parts[2] if len(parts) == 3 else None
    return datasets.load_dataset("/".join(parts[:2]), config, split=split)


def _called(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(
            f"tasks {path!r}: neither a file nor something that can be imported: {error}"
        ) from error
    return found() if callable(found) else found


def _generated(items: Any, where: str) -> Iterator[Record]:
    if not isinstance(items, Iterable):
        raise InvalidInput(f"{where}: gave {type(items).__name__}; it must give tasks or dicts")
    for number, item in enumerate(items):
        value = item.model_dump() if isinstance(item, Task) else item
        yield Record(f"{where}[{number}]", _object(value, f"{where}[{number}]"))


def _file(path: Path) -> Iterator[Record]:
    if path.suffix == ".parquet":
        return _parquet(path)
    return _csv(path) if path.suffix == ".csv" else _json(path)


def _json(path: Path) -> Iterator[Record]:
    where = str(path)
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            for number, line in enumerate(text.split("\n"), 1):
                where = f"{path}:{number}"
                if line.strip():
                    yield Record(where, _object(json.loads(line), where))
            return
        loaded = json.loads(text)
    except InvalidInput:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"tasks {str(path)!r} can't be read: {error}") from error
    except ValueError as error:
        raise InvalidInput(f"{where}: not JSON: {error}") from error
    for i, value in enumerate(loaded if isinstance(loaded, list) else [loaded]):
        yield Record(f"{path}[{i}]", _object(value, f"{path}[{i}]"))


def _csv(path: Path) -> Iterator[Record]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            names = reader.fieldnames or []
            if len(set(names)) != len(names) or "" in names:
                raise InvalidInput(f"{path}:1: every column needs a name of its own: {names}")
            line = 2
            for row, cells in enumerate(reader):
                where, line = f"{path}:{line}", reader.line_num + 1
                if None in cells or None in cells.values():
                    raise InvalidInput(f"{where}: not as many cells as the header has columns")
                # An empty cell is a field that is not given: the model's default counts.
                given = {name: cell for name, cell in cells.items() if cell != ""}
                yield Record(where, given, path.stem, row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"tasks {str(path)!r} can't be read: {error}") from error


def _parquet(path: Path) -> Iterator[Record]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data") from error
    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS):
                for value in batch.to_pylist():
                    yield Record(f"{path}[{row}]", value, path.stem, row)
                    row += 1
    except (OSError, pa.ArrowException) as error:
        raise InvalidInput(f"tasks {str(path)!r} can't be read: {error}") from error


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{where}: expected an object, got {type(value).__name__}")
    return dict(value)

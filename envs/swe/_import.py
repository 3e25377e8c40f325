"""Reads published task data sets, from a hub by name or from local files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs.swe._errors import InvalidTask, SourceUnavailable
from trajgym.envs.swe._record import SweRecord, documents
from trajgym.envs.swe._shapes import normalised
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trajgym.envs.swe._shapes import Shape
    from trajgym.trajectory import Task

__all__ = ["Imported", "import_tasks", "rows_of"]

_TEXT = {".json", ".jsonl"}


class Imported(NamedTuple):
    """The usable tasks of a data set, and one message for each other record."""

    tasks: list[Task]
    problems: list[str]


def import_tasks(
    source: str | Path,
    *,
    split: str = "test",
    shape: Shape | None = None,
    image: str | None = None,
    scripts: Path | None = None,
) -> Imported:
    """Read a data set of SWE tasks in any published shape.

    Args:
        source: a ``.parquet``, ``.jsonl``, ``.json`` or ``.arrow`` file, a folder of such files or
            one that ``datasets`` saved, or the name of a data set on the hub.
        split: which split, where the data set has several.
        shape: the shape of the rows, where their fields don't determine it.
        image: name of each record's container image, instead of what its fields say;
            ``{instance_id}`` and other fields in braces are filled in.
        scripts: folder with ``<instance_id>/run_script.sh`` and ``parser.py`` for each record, as
            SWE-bench Pro's ``run_scripts``.

    Raises:
        InvalidTask: the file does not exist or can't be read.
        MissingExtra: the format needs ``trajgym[swebench]``.
        SourceUnavailable: the hub has no such data set or can't be reached.
    """
    tasks: dict[str, Task] = {}
    problems: list[str] = []
    for where, row in rows_of(source, split=split):
        try:
            task = _task(_scripted(row, where, scripts), where, shape, image)
            if task.id in tasks:
                raise InvalidTask(f"{where}: instance_id {task.id!r} occurs twice")
        except InvalidTask as error:
            problems.append(str(error))
        else:
            tasks[task.id] = task
    return Imported(list(tasks.values()), problems)


def rows_of(source: str | Path, *, split: str = "test") -> Iterable[tuple[str, Any]]:
    """Return the rows of a data set, each with its position; see :func:`import_tasks`."""
    path = Path(source)
    if path.is_dir() and not _saved(path):
        files = sorted(p for p in path.iterdir() if p.suffix in {*_TEXT, ".parquet", ".arrow"})
        if not files:
            raise InvalidTask(f"{path}: no .parquet, .arrow, .jsonl or .json file in this folder")
        return (row for file in files for row in rows_of(file, split=split))
    if path.suffix in _TEXT and path.exists():
        return documents(path)
    if path.exists():
        return _table(path, split)
    if path.suffix in {*_TEXT, ".parquet", ".arrow"} or str(source).startswith((".", "/")):
        raise InvalidTask(f"{path}: no such data set file")
    return _hub(str(source), split)


def _task(row: Any, where: str, shape: Shape | None, image: str | None) -> Task:
    if not isinstance(row, dict):
        raise InvalidTask(f"{where}: expected an object, got {type(row).__name__}")
    made = normalised(row, shape=shape, where=where)
    if image is not None:
        try:
            made["image"] = image.format_map(made)
        except (KeyError, ValueError, IndexError) as error:
            raise InvalidTask(f"{where}: image {image!r} can't be formatted: {error}") from error
    return SweRecord.parse(made, where).to_task()


def _scripted(row: Any, where: str, scripts: Path | None) -> Any:
    """Return a row with the scripts that a folder has for it."""
    if scripts is None or not isinstance(row, dict):
        return row
    name = str(row.get("instance_id", ""))
    folder = scripts / name
    if not name or folder.parent != scripts:
        raise InvalidTask(f"{where}: instance_id {name!r} has no folder of scripts")
    try:
        texts = [(folder / file).read_text("utf-8") for file in ("run_script.sh", "parser.py")]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidTask(
            f"{where}, record {name!r}: its scripts can't be read: {error}"
        ) from error
    return {**row, "run_script": texts[0], "parser_script": texts[1]}


def _saved(path: Path) -> bool:
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def _table(path: Path, split: str) -> Iterator[tuple[str, Any]]:
    """Read parquet, arrow, or what ``save_to_disk`` wrote."""
    datasets = _datasets()
    try:
        if path.is_dir():
            found = datasets.load_from_disk(str(path))
            return _numbered(_split_of(found, split, str(path)), str(path))
        if path.suffix == ".arrow":
            return _numbered(datasets.Dataset.from_file(str(path)), str(path))
        if path.suffix == ".parquet":
            return _numbered(_parquet(path), str(path))
    except (OSError, ValueError, TypeError) as error:
        raise InvalidTask(f"{path}: can't be read: {error}") from error
    raise InvalidTask(f"{path}: not a .parquet, .arrow, .jsonl or .json file")


def _parquet(path: Path) -> Iterable[dict[str, Any]]:
    """Read row groups one by one; `datasets` itself would first copy the file into its cache."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=256):
            yield from batch.to_pylist()


def _hub(name: str, split: str) -> Iterator[tuple[str, Any]]:
    datasets = _datasets()
    try:
        return _numbered(datasets.load_dataset(name, split=split), f"{name}[{split}]")
    except Exception as error:  # the hub's client raises errors of many libraries
        raise SourceUnavailable(
            f"data set {name!r}, split {split!r}: {type(error).__name__}: {error}; give the path "
            "of a local parquet, jsonl or arrow file instead"
        ) from error


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "swebench") from None
    return datasets


def _split_of(found: Any, split: str, where: str) -> Any:
    if not hasattr(found, "keys"):
        return found
    if split not in found:
        raise InvalidTask(f"{where}: no split {split!r}; it has {sorted(found)}")
    return found[split]


def _numbered(rows: Iterable[Any], where: str) -> Iterator[tuple[str, Any]]:
    for number, row in enumerate(rows):
        yield f"{where}[{number}]", row

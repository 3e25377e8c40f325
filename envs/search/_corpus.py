"""Reading passages from files, one at a time."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trajgym.envs.search._engine import Passage
from trajgym.envs.search._errors import InvalidCorpus
from trajgym.envs.search._shapes import context_of
from trajgym.envs.search._text import passage_id, split_contents
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["CorpusHash", "iter_records", "passages_of", "read_passages"]

_SUFFIXES = (".jsonl", ".json", ".parquet", ".jsonl.gz", ".json.gz")
_PARQUET_ROWS = 4096


class CorpusHash:
    """The hash of a sequence of passages; it can be resumed from a saved state.

    Args:
        state: what :attr:`state` was, or empty at the start.
    """

    def __init__(self, state: str = "") -> None:
        self._state = bytes.fromhex(state)

    def add(self, passage: Passage) -> None:
        """Add the next passage."""
        fields = (passage.id, passage.title, passage.text, passage.url)
        one = hashlib.sha256(json.dumps(fields).encode()).digest()
        self._state = hashlib.sha256(self._state + one).digest()

    @property
    def state(self) -> str:
        """64 hex digits; empty before the first passage."""
        return self._state.hex()


def read_passages(sources: Iterable[str | Path]) -> Iterator[Passage]:
    """Yield the passages of files and folders, in order, duplicates included.

    A record is a passage (``id`` or ``_id``, and ``contents``, or ``text`` with ``title`` and
    ``url``), or a question with its context (HotpotQA, 2WikiMultihopQA, MuSiQue), whose context is
    used.

    Raises:
        InvalidCorpus: a file that can't be read, a record without text; names file and record.
    """
    for where, record in iter_records(sources):
        yield from passages_of(record, where)


def passages_of(record: dict[str, Any], where: str) -> list[Passage]:
    """Return the passages that a record holds.

    Raises:
        InvalidCorpus: it is neither a passage nor a question with context.
    """
    context = context_of(record)
    if context:
        return [Passage(passage_id(p.title, p.text), p.title, p.text) for p in context]
    title, text = str(record.get("title") or ""), record.get("text")
    if isinstance(record.get("contents"), str):
        title, text = split_contents(record["contents"])
    if not isinstance(text, str) or not (text.strip() or title.strip()):
        raise InvalidCorpus(
            f"{where}: no passage; it needs `contents`, or `text` (with `title`), or the context "
            f"of a question; its fields are {sorted(record)}",
        )
    own = record.get("id", record.get("_id"))
    name = passage_id(title, text) if own is None else str(own)
    return [Passage(name, title, text, str(record.get("url") or ""))]


def iter_records(sources: Iterable[str | Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of ``.jsonl``, ``.json`` (also ``.gz``) and ``.parquet`` files.

    A folder is read file by file, sorted by name. All formats but ``.json`` are streamed.

    Raises:
        InvalidCorpus: a file is missing, has another format, or holds something that is not an
            object.
    """
    for source in sources:
        for path in _files(Path(source)):
            try:
                yield from _records(path)
            except (OSError, ValueError, EOFError) as error:
                if isinstance(error, InvalidCorpus):
                    raise
                raise InvalidCorpus(f"{path}: can't be read: {error}") from error


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = [p for p in sorted(path.iterdir()) if p.name.endswith(_SUFFIXES)]
        if not found:
            raise InvalidCorpus(f"{path}: no {', '.join(_SUFFIXES)} file in this folder")
        return found
    if not path.name.endswith(_SUFFIXES):
        raise InvalidCorpus(f"{path}: not one of {', '.join(_SUFFIXES)}")
    return [path]


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    with _open(path) as file:
        if ".jsonl" in path.suffixes:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _object(json.loads(line), f"{path}:{number}")
            return
        loaded = json.load(file)
    many = loaded if isinstance(loaded, list) else loaded.get("data", loaded)
    for index, record in enumerate(many if isinstance(many, list) else [many]):
        yield _object(record, f"{path}[{index}]")


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data") from error
    number = 0
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
            for record in batch.to_pylist():
                yield _object(record, f"{path}[{number}]")
                number += 1


def _object(record: object, where: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(record, dict):
        raise InvalidCorpus(f"{where}: expected an object, got {type(record).__name__}")
    return where, record

"""The files of a BM25 index: written in several passes over the disk, in bounded memory."""

from __future__ import annotations

import json
import shutil
from array import array
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from trajgym.envs.search._analysis import Analyzer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from trajgym.envs.search._analysis import BM25Settings
    from trajgym.envs.search._store import PassageStore

__all__ = ["LARGEST", "write_postings"]

LARGEST = "largest.npy"
"""File with the largest score of each term; bm25s does not read it."""

_CHUNK = 20_000
"""Passages per chunk."""
_BUCKET = 2_000_000
"""Maximum number of entries that are sorted in memory."""
_ENTRY = np.dtype([("term", "<i4"), ("row", "<i4"), ("times", "<i4")])


def write_postings(
    store: PassageStore,
    settings: BM25Settings,
    folder: Path,
    on_progress: Callable[[int], None] | None,
) -> None:
    """Write vocabulary and scored postings in the file format of bm25s (CSC arrays).

    First the passages are counted, then the counts are distributed over files by ranges of terms,
    then each range is sorted, scored and appended. Memory holds the vocabulary, one number per
    passage and per term, and one chunk.
    """
    vocabulary: dict[str, int] = {}
    lengths = np.zeros(len(store), np.float64)
    frequencies = _count(store, settings, folder / "counts", vocabulary, lengths, on_progress)
    starts = np.concatenate([[0], np.cumsum(frequencies)])
    buckets = _distribute(folder / "counts", folder, starts)
    with np.errstate(divide="ignore"):
        idf = np.log1p((len(store) - frequencies + 0.5) / (frequencies + 0.5))
    average = max(1e-9, float(lengths.mean()))
    penalty = settings.k1 * (1 - settings.b + settings.b * lengths / average)
    largest = [np.zeros(0, np.float32)]
    with (folder / "data").open("wb") as data, (folder / "indices").open("wb") as indices:
        for bucket in buckets:
            entries = np.fromfile(bucket, _ENTRY)
            # Stable: the passages of a term stay in order.
            entries = entries[np.argsort(entries["term"], kind="stable")]
            times, row = entries["times"], entries["row"]
            # k1 + 1 in the numerator would not change any ranking; bm25s and Lucene leave it out.
            scores = (idf[entries["term"]] * times / (times + penalty[row])).astype(np.float32)
            scores.tofile(data)
            changes = np.flatnonzero(np.diff(entries["term"], prepend=-1))
            largest.append(np.maximum.reduceat(scores, changes))
            row.tofile(indices)
            bucket.unlink()
    _as_npy(folder / "data", folder / "data.csc.index.npy", np.dtype(np.float32))
    _as_npy(folder / "indices", folder / "indices.csc.index.npy", np.dtype(np.int32))
    np.save(folder / LARGEST, np.concatenate(largest))
    np.save(folder / "indptr.csc.index.npy", starts.astype(np.int64))
    (folder / "vocab.index.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    params = {
        "k1": settings.k1, "b": settings.b, "delta": 0.5, "method": "lucene",
        "idf_method": "lucene", "dtype": "float32", "int_dtype": "int32",
        "num_docs": len(store), "backend": "numpy",
    }  # fmt: skip
    (folder / "params.index.json").write_text(json.dumps(params))


def _count(
    store: PassageStore,
    settings: BM25Settings,
    counts: Path,
    vocabulary: dict[str, int],
    lengths: NDArray[np.float64],
    on_progress: Callable[[int], None] | None,
) -> NDArray[np.int64]:
    """Write one entry per passage and distinct term.

    Returns int64 ``[terms]``, the passages of each term.
    The entries of a chunk are in the order of the terms.
    """
    analyzer = Analyzer(settings)
    frequencies = np.zeros(0, np.int64)
    scan = enumerate(store.scan())
    with counts.open("wb") as out:
        while True:
            terms, rows = array("i"), array("i")
            row = -1
            for row, passage in scan:
                # Looked up before it is inserted: the number of a new term is the size so far.
                found = [
                    vocabulary.setdefault(term, len(vocabulary))
                    for term in analyzer.terms(f"{passage.title} {passage.text}")
                ]
                terms.extend(found)
                rows.extend([row] * len(found))
                lengths[row] = len(found)
                if (row + 1) % _CHUNK == 0:
                    break
            if row < 0:
                break
            entries = _entries(np.frombuffer(terms, np.int32), np.frombuffer(rows, np.int32))
            entries.tofile(out)
            frequencies = np.append(frequencies, np.zeros(len(vocabulary) - len(frequencies), int))
            frequencies += np.bincount(entries["term"], minlength=len(frequencies))
            if on_progress is not None:
                on_progress(row + 1)
    return frequencies


def _entries(terms: NDArray[np.int32], rows: NDArray[np.int32]) -> NDArray[Any]:
    keys, times = np.unique((terms.astype(np.int64) << 32) | rows, return_counts=True)
    entries = np.empty(len(keys), _ENTRY)
    entries["term"], entries["row"], entries["times"] = keys >> 32, keys & 0xFFFFFFFF, times
    return entries


def _distribute(counts: Path, folder: Path, starts: NDArray[np.int64]) -> list[Path]:
    """Split the entries into files by ranges of terms, each small enough to be sorted."""
    total = int(starts[-1])
    # The first term of every range; a term is never split.
    firsts = np.unique(np.searchsorted(starts[:-1], np.arange(0, max(1, total), _BUCKET)))
    paths = [folder / f"bucket.{number}" for number in range(len(firsts))]
    files = [path.open("wb") for path in paths]
    try:
        for chunk in _chunks(counts):
            ends = [*np.searchsorted(chunk["term"], firsts[1:]), len(chunk)]
            start = 0
            for file, end in zip(files, ends, strict=True):
                chunk[start:end].tofile(file)
                start = end
    finally:
        for file in files:
            file.close()
    counts.unlink()
    return paths


def _chunks(counts: Path) -> Iterator[NDArray[Any]]:
    """Yield parts of the file in each of which the terms are sorted."""
    with counts.open("rb") as file:
        while len(block := np.fromfile(file, _ENTRY, _BUCKET)):
            breaks = np.flatnonzero(np.diff(block["term"]) < 0) + 1
            yield from np.split(block, breaks)


def _as_npy(raw: Path, target: Path, dtype: np.dtype[Any]) -> None:
    """Put numpy's header before raw numbers."""
    count = raw.stat().st_size // dtype.itemsize
    header = {"descr": dtype.str, "fortran_order": False, "shape": (count,)}
    with raw.open("rb") as numbers, target.open("wb") as file:
        out: IO[bytes] = file
        np.lib.format.write_array_header_1_0(out, header)
        shutil.copyfileobj(numbers, out, 1 << 20)
    raw.unlink()

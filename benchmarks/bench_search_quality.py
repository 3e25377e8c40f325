"""Search quality: settings of BM25 on three collections, compared with bm25s in the same run.

Usage: python benchmarks/bench_search_quality.py [--questions DIR] [--queries N] [--out FILE]

The collections are known-item queries (three to six consecutive words of a passage, which is to be
found), multi-hop questions with their supporting passages (one collection of public questions, and
one of invented worlds), and docstrings of the standard library (the first line is the query; the
rest is to be found). DIR contains `passages.jsonl.gz` and
`questions.jsonl`; without it, known items are from the built-in corpus, and public questions are
left out. Speed is measured with single queries and with batches of 64, in CPU seconds, which a busy
machine affects less. trajgym is measured through its asynchronous interface, including reading the
passages; bm25s tokenises, scores and returns row numbers.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import os
import platform
import random
import re
import shutil
import sys
import sysconfig
import tempfile
import time
from contextlib import AsyncExitStack
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from trajgym.envs.search import (
    BM25Engine,
    BM25Settings,
    Passage,
    SqliteEngine,
    build_bm25,
    build_index,
    builtin_index,
    read_passages,
)
from trajgym.envs.search._store import PassageStore

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the generator of the built-in corpus

from tests.search.world.questions import ask
from tests.search.world.things import World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

_BATCH = 64
_TIMED = 640
_ROUNDS = 5
_WORD = re.compile(r"[^\W_]+")
SETTINGS = {
    "default": BM25Settings(),
    "underscores in words": BM25Settings(token_pattern=r"\w+"),
    "stems only": BM25Settings(keep_words=False),
    "words only": BM25Settings(stemmer=None),
    "words only, stop words left out": BM25Settings(stemmer=None, stop_words=True),
    "stop words left out": BM25Settings(stop_words=True),
    "k1=0.9, b=0.4": BM25Settings(k1=0.9, b=0.4),
}
_SAME_WORDS = {
    "words only": r"bm25s, \w+, no stop words",
    "words only, stop words left out": "bm25s",
}
"""Settings that search the same words as a variant of bm25s. The default is timed with each."""


Timed: TypeAlias = "Callable[[list[list[str]]], Awaitable[float]]"
"""Answers batches of queries and returns the CPU seconds."""


class Collection(NamedTuple):
    """Passages, queries, and which rows each query should find."""

    passages: list[Passage]
    queries: list[str]
    wanted: list[set[int]]
    depth: int
    """Number of hits that are evaluated."""


def collections(folder: Path | None, queries: int) -> dict[str, Collection]:
    """Return the collections that are available."""
    if folder is None:
        store = PassageStore(builtin_index())
        passages = list(store.scan())
        store.close()
        return {
            "known item": known_item(passages, queries),
            "multi-hop, invented": invented(),
            "docstrings": docstrings(queries),
        }
    passages = list(read_passages([folder / "passages.jsonl.gz"]))
    lines = (folder / "questions.jsonl").read_text().splitlines()
    asked = [q for q in map(json.loads, lines) if q["gold"]]
    rows = {passage.id: row for row, passage in enumerate(passages)}
    multi = Collection(
        passages, [q["question"] for q in asked], [{rows[g] for g in q["gold"]} for q in asked], 5
    )
    return {
        "known item": known_item(passages, queries),
        "multi-hop": multi,
        "multi-hop, invented": invented(),
        "docstrings": docstrings(queries),
    }


def known_item(passages: list[Passage], count: int) -> Collection:
    """Make queries of a few consecutive words of a passage, which is to be found."""
    chance = random.Random(0)
    queries, wanted = [], []
    for row in chance.sample(range(len(passages)), min(count, len(passages))):
        found = _WORD.findall(passages[row].text)
        size = chance.randint(3, 6)
        start = chance.randrange(max(1, len(found) - size))
        queries.append(" ".join(found[start : start + size]))
        wanted.append({row})
    return Collection(passages, queries, wanted, 3)


def invented(worlds: int = 20) -> Collection:
    """Make multi-hop questions about several worlds like the one of the built-in corpus."""
    passages: list[Passage] = []
    queries, wanted = [], []
    for seed in range(worlds):
        world = World(seed)
        rows = {p["id"]: len(passages) + n for n, p in enumerate(world.passages)}
        passages += [Passage(f"{seed}-{p['id']}", p["title"], p["text"]) for p in world.passages]
        for asked in ask(world):
            queries.append(asked["question"])
            wanted.append({rows[name] for name in asked["gold"]})
    return Collection(passages, queries, wanted, 5)


def docstrings(count: int) -> Collection:
    """Make queries of the first lines of docstrings, whose remainders are to be found."""
    pairs = list(_docstrings(Path(sysconfig.get_paths()["stdlib"])))
    passages = [Passage(f"d{row}", "", rest) for row, (_, rest) in enumerate(pairs)]
    rows = random.Random(0).sample(range(len(pairs)), min(count, len(pairs)))
    return Collection(passages, [pairs[row][0] for row in rows], [{row} for row in rows], 3)


def _docstrings(folder: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.rglob("*.py")):
        if {"test", "tests", "site-packages", "idlelib"} & set(file.parts):
            continue
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
                first, _, rest = (ast.get_docstring(node) or "").partition("\n")
                if len(first.split()) > 3 and len(rest.split()) > 15:
                    yield first, rest


def share_found(rows: list[list[int]], collection: Collection) -> float:
    """Return the mean share of the wanted rows among the first hits."""
    shares = [
        len(set(found[: collection.depth]) & wanted) / len(wanted)
        for found, wanted in zip(rows, collection.wanted, strict=True)
    ]
    return round(sum(shares) / len(shares), 4)


class Peer:
    """bm25s with numba, called as in its documentation."""

    def __init__(self, texts: list[str], **tokenize: Any) -> None:
        import bm25s

        self._bm25s, self._tokenize = bm25s, tokenize
        self._engine = bm25s.BM25(backend="numba")
        tokens = bm25s.tokenize(texts, show_progress=False, **tokenize)
        self._engine.index(tokens, show_progress=False)

    def rows(self, queries: list[str], k: int) -> list[list[int]]:
        """Return the best rows of each query."""
        tokens = self._bm25s.tokenize(
            queries, return_ids=False, show_progress=False, **self._tokenize
        )
        if not any(tokens):  # bm25s raises an error for queries of stop words only
            return [[] for _ in queries]
        found = self._engine.retrieve(tokens, k=k, show_progress=False)
        rows: list[list[int]] = found.documents.tolist()
        return rows


def peers(texts: list[str]) -> dict[str, Peer]:
    """Return bm25s with its defaults and with every word, each with and without stemming."""
    import Stemmer

    english = Stemmer.Stemmer("english")
    return {
        "bm25s": Peer(texts),
        "bm25s, stemmer": Peer(texts, stemmer=english),
        r"bm25s, \w+, no stop words": Peer(texts, token_pattern=r"\w+", stopwords=[]),
        r"bm25s, \w+, stemmer": Peer(texts, token_pattern=r"\w+", stemmer=english),
        r"bm25s, \w+, no stop words, stemmer": Peer(
            texts, token_pattern=r"\w+", stopwords=[], stemmer=english
        ),
    }


async def measure(collection: Collection, work: Path) -> dict[str, Any]:
    """Return the quality of every setting and variant on one collection, and their speeds."""
    build_index(collection.passages, work)
    texts = [f"{p.title} {p.text}" for p in collection.passages]
    rows = {p.id: row for row, p in enumerate(collection.passages)}
    quality: dict[str, float] = {}

    async def ours(engine: BM25Engine | SqliteEngine) -> float:
        hits = await engine.search(collection.queries, 10)
        return share_found([[rows[hit.passage.id] for hit in row] for row in hits], collection)

    async with SqliteEngine(work, seconds=120) as sqlite:
        quality["trajgym sqlite"] = await ours(sqlite)
    others = peers(texts)
    for name, peer in others.items():
        quality[name] = share_found(peer.rows(collection.queries, 10), collection)
    timed: dict[str, Timed] = {name: partial(_time, peer) for name, peer in others.items()}
    async with AsyncExitStack() as stack:
        for name, settings in SETTINGS.items():
            build_bm25(work, settings)
            engine = await stack.enter_async_context(BM25Engine(work))
            quality[f"trajgym bm25, {name}"] = await ours(engine)
            if name == "default" or name in _SAME_WORDS:
                timed[f"trajgym bm25, {name}"] = partial(_time_engine, engine)
        print(json.dumps(quality, indent=1), flush=True)
        speed = await speeds(timed, collection.queries[:_TIMED])
    best = max(others, key=quality.__getitem__)
    pairs = [("default", name) for name in {best: 1, **others}] + list(_SAME_WORDS.items())
    return {
        "passages": len(texts),
        "queries": len(collection.queries),
        f"found@{collection.depth}": quality,
        "best of bm25s": best,
        "queries per CPU second (one at a time, batched)": speed,
        "speed over bm25s (one at a time, batched)": {
            f"{name} / {theirs}": _ratio(speed[f"trajgym bm25, {name}"], speed[theirs])
            for name, theirs in pairs
        },
    }


def _ratio(ours: list[float], theirs: list[float]) -> list[float]:
    return [round(x / y, 2) for x, y in zip(ours, theirs, strict=True)]


async def speeds(timed: dict[str, Timed], queries: list[str]) -> dict[str, list[float]]:
    """Return queries per CPU second, one at a time and batched: the best of several rounds.

    Every round times everything, since the speed of a shared machine changes.
    """
    best = {name: [0.0, 0.0] for name in timed}
    for _ in range(_ROUNDS):
        for name, measure in timed.items():
            for way, batches in enumerate([[[query] for query in queries], _batches(queries)]):
                rate = len(queries) / await measure(batches)
                best[name][way] = max(best[name][way], round(rate, 1))
    return best


async def _time(peer: Peer, batches: list[list[str]]) -> float:
    started = time.process_time()
    for batch in batches:
        peer.rows(batch, 10)
    return time.process_time() - started


async def _time_engine(engine: BM25Engine, batches: list[list[str]]) -> float:
    started = time.process_time()
    for batch in batches:
        await engine.search(batch, 10)
    return time.process_time() - started


def _batches(queries: list[str]) -> list[list[str]]:
    return [queries[start : start + _BATCH] for start in range(0, len(queries), _BATCH)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, load {os.getloadavg()[0]:.1f}",
        "date": date.today().isoformat(),  # noqa: DTZ011
    }
    for name, collection in collections(options.questions, options.queries).items():
        work = Path(tempfile.mkdtemp(prefix="bench-search-"))
        try:
            result[name] = asyncio.run(measure(collection, work))
        finally:
            shutil.rmtree(work)
        print(name, json.dumps(result[name], indent=1), flush=True)
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

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
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
    from collections.abc import Callable, Iterator

_BATCH = 64
_TIMED = 640
_WORD = re.compile(r"[^\W_]+")
SETTINGS = {
    "default": BM25Settings(),
    "words and stems": BM25Settings(stemmer="english"),
    "stems only": BM25Settings(stemmer="english", keep_words=False),
    "stop words left out": BM25Settings(stop_words=True),
    "k1=0.9, b=0.4": BM25Settings(k1=0.9, b=0.4),
}
_SAME_TERMS = {"default": r"bm25s, \w+, no stop words", "stop words left out": "bm25s"}
"""Settings whose speed is compared, and the variant of bm25s that searches the same words."""


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
        return found.documents.tolist()


def peers(texts: list[str]) -> dict[str, Peer]:
    """Return bm25s with its defaults and with every word, each with and without stemming."""
    import Stemmer

    english = Stemmer.Stemmer("english")
    return {
        "bm25s": Peer(texts),
        "bm25s, stemmer": Peer(texts, stemmer=english),
        r"bm25s, \w+, no stop words": Peer(texts, token_pattern=r"\w+", stopwords=[]),
        r"bm25s, \w+, no stop words, stemmer": Peer(
            texts, token_pattern=r"\w+", stopwords=[], stemmer=english
        ),
    }


async def measure(collection: Collection, work: Path) -> dict[str, Any]:
    """Return the quality of every setting and peer on one collection, and the speeds."""
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
    queries = collection.queries[:_TIMED]
    speed: dict[str, tuple[float, float]] = {}
    for name, settings in SETTINGS.items():
        build_bm25(work, settings)
        async with BM25Engine(work) as engine:
            quality[f"trajgym bm25, {name}"] = await ours(engine)
            if name in _SAME_TERMS:  # timed together, since a machine's speed changes
                peer = others[_SAME_TERMS[name]]
                speed[_SAME_TERMS[name]] = timed(peer, queries)
                speed[f"trajgym bm25, {name}"] = await timed_engine(engine, queries)
    print(json.dumps(quality, indent=1), flush=True)
    for name, peer in others.items():
        speed.setdefault(name, timed(peer, queries))
    same = {
        f"{name} / {theirs}": _ratio(speed[f"trajgym bm25, {name}"], speed[theirs])
        for name, theirs in _SAME_TERMS.items()
    }
    return {
        "passages": len(texts),
        "queries": len(collection.queries),
        f"found@{collection.depth}": quality,
        "queries per CPU second (one at a time, batched)": speed,
        "speed over bm25s with the same words (one at a time, batched)": same,
    }


def _ratio(ours: tuple[float, float], theirs: tuple[float, float]) -> list[float]:
    return [round(x / y, 2) for x, y in zip(ours, theirs, strict=True)]


def timed(peer: Peer, queries: list[str]) -> tuple[float, float]:
    """Return queries per second, one at a time and batched; the best of three rounds."""
    peer.rows(queries[:_BATCH], 10)
    return (
        _rate(lambda: [peer.rows([query], 10) for query in queries], len(queries)),
        _rate(lambda: [peer.rows(batch, 10) for batch in _batches(queries)], len(queries)),
    )


async def timed_engine(engine: BM25Engine, queries: list[str]) -> tuple[float, float]:
    """Return the same for an engine of trajgym, through its asynchronous interface."""
    rates = []
    for batches in ([[query] for query in queries], _batches(queries)):
        best = 0.0
        for _ in range(3):
            started = time.process_time()
            for batch in batches:
                await engine.search(batch, 10)
            best = max(best, len(queries) / (time.process_time() - started))
        rates.append(round(best, 1))
    return rates[0], rates[1]


def _rate(work: Callable[[], Any], count: int) -> float:
    best = 0.0
    for _ in range(3):
        started = time.process_time()
        work()
        best = max(best, count / (time.process_time() - started))
    return round(best, 1)


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

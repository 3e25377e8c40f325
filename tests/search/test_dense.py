"""Dense search, approximate search and reranking with small encoders; real ones are slow tests."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

from trajgym.envs.search import (
    DenseEngine,
    IndexMismatch,
    Passage,
    RerankedEngine,
    SqliteEngine,
    build_dense,
    build_index,
    check_engine,
)
from trajgym.envs.search._encoders import prefixes_for
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray


class Hashing:
    """Adds up a random direction per word."""

    size = 64

    def __init__(self, name: str = "hashing") -> None:
        self.name = name
        self.encoded = 0

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        sums = np.stack([sum(map(self._word, text.lower().split())) for text in texts])
        return (sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32)

    encode = encode_queries

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.encoded += len(texts)
        return self.encode_queries(texts)

    def _word(self, word: str) -> NDArray[np.float64]:
        seed = int.from_bytes(hashlib.sha256(word.strip(".,?").encode()).digest()[:8])
        return np.random.default_rng(seed).normal(size=self.size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two thousand passages of eight words each, with exact vectors and a graph."""
    chance = np.random.default_rng(0)
    words = [f"word{n}" for n in range(300)]
    out = tmp_path_factory.mktemp("dense")
    texts = [" ".join(chance.choice(words, 8)) for _ in range(2000)]
    build_index((Passage(f"p{n}", "", text) for n, text in enumerate(texts)), out)
    encoder = Hashing()
    assert build_dense(out, encoder=encoder, approximate=True)
    assert not build_dense(out, encoder=encoder, approximate=True)
    assert encoder.encoded == 2000
    return out


async def test_approximate_search_finds_what_exact_search_finds(folder: Path) -> None:
    """The graph keeps the promises of an engine, and its measured recall is what queries get."""
    queries = [f"word{n} word{n + 1} word{n + 2}" for n in range(0, 290, 10)]
    async with (
        DenseEngine(folder, encoder=Hashing()) as exact,
        DenseEngine(folder, encoder=Hashing(), approximate=True) as near,
    ):
        await check_engine(near, queries[:4])
        assert exact.recall == 1.0
        assert 0.9 <= near.recall <= 1.0
        ours, theirs = await near.search(queries, 10), await exact.search(queries, 10)
    pairs = zip(ours, theirs, strict=True)
    shared = sum(len({h.passage.id for h in a} & {h.passage.id for h in b}) for a, b in pairs)
    assert shared / (10 * len(queries)) > 0.9


async def test_vectors_of_another_encoder_are_refused(folder: Path, tmp_path: Path) -> None:
    """Vectors and graph belong to their encoder, prefixes included; a graph is not assumed."""
    with pytest.raises(IndexMismatch, match="not encoded by other"):
        DenseEngine(folder, encoder=Hashing("other"))
    build_index([Passage("a", "", "tide salt"), Passage("b", "", "eel")], tmp_path)
    build_dense(tmp_path, encoder=Hashing())
    with pytest.raises(IndexMismatch, match="--with ann"):
        DenseEngine(tmp_path, encoder=Hashing(), approximate=True)
    assert build_dense(tmp_path, encoder=Hashing("other"), approximate=True)
    async with DenseEngine(tmp_path, encoder=Hashing("other"), approximate=True) as engine:
        assert (await engine.search(["tide salt"], 1))[0][0].passage.id == "a"


async def test_reranking_reorders_the_first_hits(index: Path) -> None:
    """The reranker's order counts among the first hits; the engine's promises still hold."""

    class Shortest:
        name = "shortest"

        def scores(self, query: str, passages: Sequence[str]) -> NDArray[np.float32]:
            return np.array([-len(text) for text in passages], np.float32)

    async with RerankedEngine(SqliteEngine(index), Shortest(), depth=8) as engine:
        await check_engine(engine, ["bell founding", "island export"])
        hits = (await engine.search(["bell founding"], 20))[0]
        async with SqliteEngine(index) as plain:
            first = (await plain.search(["bell founding"], 8))[0]
    assert {hit.passage.id for hit in hits} == {hit.passage.id for hit in first}
    lengths = [len(f"{hit.passage.title}\n{hit.passage.text}") for hit in hits]
    assert lengths == sorted(lengths)
    with pytest.raises(InvalidInput, match="depth"):
        RerankedEngine(SqliteEngine(index), Shortest(), depth=0)


@pytest.mark.parametrize(
    ("model", "query", "passage"),
    [
        ("intfloat/e5-base-v2", "query: ", "passage: "),
        ("/models/multilingual-e5-small/", "query: ", "passage: "),
        ("intfloat/e5-mistral-7b-instruct", "", ""),
        ("BAAI/bge-small-en-v1.5", "Represent this sentence for searching", ""),
        ("BAAI/bge-m3", "", ""),
        ("sentence-transformers/all-MiniLM-L6-v2", "", ""),
    ],
)
def test_prefixes_of_model_families(model: str, query: str, passage: str) -> None:
    """Queries and passages get the prefixes that a family of models was trained with."""
    of_query, of_passage = prefixes_for(model)
    assert of_query.startswith(query)
    assert bool(of_query) == bool(query)
    assert of_passage == passage

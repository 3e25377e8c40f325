"""BM25: settings that the index records, and scores that bm25s agrees with."""

from __future__ import annotations

import asyncio
import tempfile
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from trajgym.envs.search import (
    BM25Engine,
    BM25Settings,
    Passage,
    _postings,
    _ranking,
    build_bm25,
    build_index,
    open_engine,
)
from trajgym.envs.search._analysis import Analyzer
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path


def corpus(count: int = 400) -> list[Passage]:
    """Passages of Zipf-like words, some of them equal."""
    chance = np.random.default_rng(3)
    rows = [
        " ".join(f"word{n}" for n in chance.zipf(1.3, chance.integers(3, 30)).clip(max=500))
        for _ in range(count)
    ]
    return [Passage(f"p{n}", f"title{n % 7}", text) for n, text in enumerate([*rows, *rows[:20]])]


@pytest.mark.parametrize("compiled", [True, False])
async def test_scores_are_those_of_bm25s(
    tmp_path: Path, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bm25s, given the same terms, has the same scores; it also loads our files."""
    import bm25s

    monkeypatch.setattr(_postings, "_CHUNK", 37)
    monkeypatch.setattr(_postings, "_BUCKET", 500)
    passages = corpus()
    chosen = BM25Settings(k1=1.4, b=0.6, stemmer="english")
    build_index(passages, tmp_path)
    assert build_bm25(tmp_path, chosen)
    terms = Analyzer(chosen).terms
    peer = bm25s.BM25(k1=1.4, b=0.6, backend="numpy")
    peer.index([terms(f"{p.title} {p.text}") for p in passages], show_progress=False)
    loaded = bm25s.BM25.load(tmp_path / "bm25", backend="numpy")
    queries = ["word3 word17", "title4 word1", "word2 word2 word90", "Word40s", "unheard"]
    async with BM25Engine(tmp_path, compiled=compiled) as engine:
        for query, hits in zip(queries, await engine.search(queries, 25), strict=True):
            asked = [term for term in terms(query) if term in peer.vocab_dict]
            if not asked:
                assert hits == []
                continue
            scores = peer.get_scores(asked)
            order = np.lexsort((np.arange(len(scores)), -scores.round(4)))[:25]
            best = [row for row in order if scores[row] > 0]
            assert [hit.score for hit in hits] == pytest.approx(scores[best].tolist(), rel=1e-4)
            assert loaded.get_scores(asked) == pytest.approx(scores, rel=1e-4)
            for hit in hits:
                assert hit.score == pytest.approx(scores[int(hit.passage.id[1:])], rel=1e-4)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.booleans(), st.sampled_from([1, 10**6]))
@settings(max_examples=25, deadline=None)
def test_leaving_out_lists_changes_nothing(seed: int, k: int, skewed: bool, many: int) -> None:
    """The compiled search skips postings or adds arrays; rows and scores remain the same."""
    chance = np.random.default_rng(seed)
    sizes = chance.integers(3, 30, 300)
    texts = [
        [
            f"w{n % 200}"
            for n in (chance.zipf(1.2, size) if skewed else chance.integers(0, 40, size))
        ]
        for size in sizes
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(_ranking, "_MANY", many),
    ):
        build_index((Passage(f"p{n}", "", " ".join(t)) for n, t in enumerate(texts)), folder)
        build_bm25(folder, BM25Settings(b=float(chance.choice([0.0, 0.75]))))
        queries = [" ".join(chance.choice(texts[n], 6)) for n in chance.integers(0, 300, 20)]

        async def found(compiled: bool) -> list[list[tuple[str, float]]]:
            async with BM25Engine(folder, compiled=compiled) as engine:
                hits = await engine.search(queries, k)
                assert hits == [(await engine.search([query], k))[0] for query in queries]
            return [[(hit.passage.id, hit.score) for hit in row] for row in hits]

        assert asyncio.run(found(True)) == asyncio.run(found(False))


async def test_settings_are_recorded_and_change_what_is_found(tmp_path: Path) -> None:
    """Queries are read as the passages were; other settings make the files anew."""
    build_index(
        [Passage("a", "", "smoked eels"), Passage("b", "", "the eel of the café")], tmp_path
    )

    async def found(query: str) -> list[str]:
        async with open_engine({"kind": "index", "path": str(tmp_path), "ranking": "bm25"}) as one:
            return [hit.passage.id for hit in (await one.search([query], 5))[0]]

    stems = BM25Settings(stemmer="english")
    assert build_bm25(tmp_path, stems)
    assert not build_bm25(tmp_path, stems)
    assert await found("eel") == ["b", "a"]  # the very word ranks above its stem
    assert await found("cafe") == ["b"]
    assert await found("the") == ["b"]
    words = BM25Settings(stemmer=None, stop_words=True, fold_accents=False)
    assert build_bm25(tmp_path, words)
    assert not build_bm25(tmp_path)  # what is there is kept
    async with BM25Engine(tmp_path, compiled=False) as engine:
        assert engine.settings == words
    assert await found("eel") == ["b"]
    assert await found("cafe") == []
    assert await found("the") == []


@pytest.mark.parametrize(
    "given_settings", [{"k1": -1}, {"b": 1.5}, {"token_pattern": "("}, {"token_pattern": "(a)(b)"}]
)
def test_bad_settings(given_settings: dict[str, object]) -> None:
    """A setting out of range is refused before anything is built."""
    with pytest.raises(ValidationError):
        BM25Settings.model_validate(given_settings)


def test_an_unknown_stemmer_is_named(tmp_path: Path) -> None:
    """The message lists the stemmers that there are."""
    build_index([Passage("a", "", "x")], tmp_path)
    with pytest.raises(InvalidInput, match=r"'klingon': unknown; use one of .*english"):
        build_bm25(tmp_path, BM25Settings(stemmer="klingon"))


async def test_a_corpus_without_words(tmp_path: Path) -> None:
    """Passages of punctuation only are indexed, and found by nothing."""
    build_index([Passage("a", "", "!!!")], tmp_path)
    build_bm25(tmp_path)
    async with BM25Engine(tmp_path) as engine:
        assert await engine.search(["x", "!"], 3) == [[], []]

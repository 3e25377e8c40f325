"""Engines by configuration; the sessions of a process share one engine per configuration."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from trajgym.envs.search._bm25 import BM25Engine
from trajgym.envs.search._build import build_index
from trajgym.envs.search._corpus import read_passages
from trajgym.envs.search._dense import DenseEngine
from trajgym.envs.search._encoders import CrossEncoder, SentenceEncoder
from trajgym.envs.search._fusion import FusedEngine, words_engine
from trajgym.envs.search._pages import PageFetcher
from trajgym.envs.search._pool import PooledEngine
from trajgym.envs.search._rerank import RerankedEngine
from trajgym.envs.search._retrieval import RetrievalClient
from trajgym.envs.search._sqlite import SqliteEngine
from trajgym.envs.search._tasks import BUILTIN, builtin_file
from trajgym.envs.search._text import passage_id
from trajgym.envs.search._wire import Patience
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.envs.search._encoders import Encoder
    from trajgym.envs.search._engine import SearchEngine
    from trajgym.envs.search._web import BraveEngine, SerperEngine

__all__ = ["EngineConfig", "Ranking", "builtin_index", "open_engine", "release", "shared_engine"]

Ranking: TypeAlias = Literal["sqlite", "bm25", "dense", "hybrid"]
EngineConfig: TypeAlias = "str | dict[str, Any]"


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    record: str | None = None


class _Encoder(BaseModel):
    """Settings of :class:`SentenceEncoder`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    query_prefix: str | None = None
    passage_prefix: str | None = None
    device: str | None = None

    def open(self) -> Encoder:
        return SentenceEncoder(
            self.model,
            query_prefix=self.query_prefix,
            passage_prefix=self.passage_prefix,
            device=self.device,
        )


class _Rerank(BaseModel):
    """Settings of :class:`RerankedEngine` and its :class:`CrossEncoder`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    depth: int = Field(default=30, ge=1)
    device: str | None = None


class _Index(_Config):
    kind: Literal["index"]
    path: str = BUILTIN
    ranking: Ranking = "sqlite"
    encoder: _Encoder | None = None
    approximate: bool = False
    rerank: _Rerank | None = None

    def open(self) -> SearchEngine:
        engine = self._ranked(builtin_index() if self.path == BUILTIN else Path(self.path))
        if self.rerank is None:
            return engine
        reranker = CrossEncoder(self.rerank.model, device=self.rerank.device)
        return RerankedEngine(engine, reranker, depth=self.rerank.depth)

    def _ranked(self, path: Path) -> SearchEngine:
        if self.ranking == "sqlite":
            return SqliteEngine(path)
        if self.ranking == "bm25":
            return BM25Engine(path)
        encoder = None if self.encoder is None else self.encoder.open()
        dense = DenseEngine(path, encoder=encoder, approximate=self.approximate)
        if self.ranking == "dense":
            return dense
        return FusedEngine([words_engine(path), dense])


class _Server(_Config):
    url: str
    seconds: float = Field(default=30.0, gt=0)
    # "attempts" is the earlier name; it goes with the next version.
    tries: int | None = Field(
        default=None, ge=1, validation_alias=AliasChoices("tries", "attempts")
    )
    total_seconds: float = Field(default=900.0, ge=0)
    unreachable_seconds: float = Field(default=120.0, ge=0)

    @property
    def patience(self) -> Patience:
        return Patience(
            seconds=self.seconds,
            tries=self.tries,
            total_seconds=self.total_seconds,
            unreachable_seconds=self.unreachable_seconds,
        )


class _Retrieval(_Server):
    kind: Literal["retrieval"]
    scores: bool = True

    def open(self) -> SearchEngine:
        return RetrievalClient(self.url, patience=self.patience, scores=self.scores)


class _OpenSearch(_Server):
    kind: Literal["opensearch"]
    index: str
    user: str | None = None
    password_env: str = "OPENSEARCH_PASSWORD"  # noqa: S105 - the name of a variable

    def open(self) -> SearchEngine:
        from trajgym.envs.search._opensearch import OpenSearchEngine

        password = os.environ.get(self.password_env, "")
        auth = (self.user, password) if self.user else None
        return OpenSearchEngine(self.url, self.index, auth=auth, patience=self.patience)


class _Web(_Server):
    """What the web-search services share."""

    language: str = "en"
    fetch: bool = False
    private_pages: bool = False

    @property
    def fetcher(self) -> PageFetcher | None:
        return PageFetcher(private=self.private_pages) if self.fetch else None


class _Searxng(_Web):
    kind: Literal["searxng"]
    engines: str = ""

    def open(self) -> SearchEngine:
        from trajgym.envs.search._web import SearxngEngine

        return SearxngEngine(
            self.url,
            engines=self.engines,
            language=self.language,
            patience=self.patience,
            fetcher=self.fetcher,
        )


class _Keyed(_Web):
    country: str = "us"
    api_key_env: str

    def _open(self, engine: type[SerperEngine | BraveEngine]) -> SearchEngine:
        if self.api_key_env not in os.environ:
            raise InvalidInput(f"search engine: the variable {self.api_key_env} holds no API key")
        return engine(
            os.environ[self.api_key_env],
            base_url=self.url,
            country=self.country,
            language=self.language,
            patience=self.patience,
            fetcher=self.fetcher,
        )


class _Serper(_Keyed):
    kind: Literal["serper"]
    url: str = "https://google.serper.dev"
    api_key_env: str = "SERPER_API_KEY"

    def open(self) -> SearchEngine:
        from trajgym.envs.search._web import SerperEngine

        return self._open(SerperEngine)


class _Brave(_Keyed):
    kind: Literal["brave"]
    url: str = "https://api.search.brave.com"
    api_key_env: str = "BRAVE_API_KEY"

    def open(self) -> SearchEngine:
        from trajgym.envs.search._web import BraveEngine

        return self._open(BraveEngine)


class _Mcp(_Server):
    kind: Literal["mcp"]
    tool: str = "search"
    argument: str = "query"

    def open(self) -> SearchEngine:
        from trajgym.envs.search._mcp import McpEngine

        return McpEngine(self.url, self.tool, argument=self.argument, patience=self.patience)


class _Replay(_Config):
    kind: Literal["replay"]
    path: str

    def open(self) -> SearchEngine:
        from trajgym.envs.search._replay import ReplayEngine

        return ReplayEngine(self.path)


_AnyConfig: TypeAlias = Annotated[
    _Index | _Retrieval | _OpenSearch | _Searxng | _Serper | _Brave | _Mcp | _Replay,
    Field(discriminator="kind"),
]
_adapter: TypeAdapter[_AnyConfig] = TypeAdapter(_AnyConfig)


def open_engine(config: EngineConfig, *, web: bool = False) -> SearchEngine:
    """Return the engine that a configuration describes, batched and cached; close it after use.

    Args:
        config: ``builtin``; an index directory; the URL of a retrieval server; or an object with
            ``kind`` (``index``, ``retrieval``, ``opensearch``, ``searxng``, ``serper``,
            ``brave``, ``mcp``, ``replay``) and its settings. ``record`` names a file
            that keeps every answer for a replay.
        web: allow engines that ask the live web.

    Raises:
        InvalidInput: the kind or a setting is unknown, there is no index, or a live engine was
            named without ``web``.
        MissingExtra: the engine needs a package that is not installed.
    """
    parsed = _parse(config)
    engine = parsed.open()
    if engine.live and not web:
        raise InvalidInput(
            f"engine {engine.name} asks the live web, whose answers change: allow it with web=true",
        )
    if parsed.record is not None:
        from trajgym.envs.search._replay import RecordingEngine

        engine = RecordingEngine(engine, parsed.record)
    return PooledEngine(engine)


def _parse(config: EngineConfig) -> _AnyConfig:
    if isinstance(config, str):
        if config.startswith(("http://", "https://")):
            config = {"kind": "retrieval", "url": config}
        else:
            config = {"kind": "index", "path": config}
    try:
        return _adapter.validate_python(config)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "engine"
        raise InvalidInput(f"search engine {config}: {where}: {first['msg']}") from error


def builtin_index() -> Path:
    """Return the index of the corpus that ships with trajgym, built in the cache at first use."""
    corpus = builtin_file("passages.jsonl")
    base = os.environ.get("TRAJGYM_CACHE")
    root = Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "trajgym")
    target = root.expanduser() / f"search-{passage_id('builtin 1', corpus.read_text())}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".search-", dir=target.parent))
        try:
            build_index(read_passages([corpus]), work)
            work.rename(target)
        except OSError:
            if not target.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


@dataclass(slots=True)
class _Shared:
    opening: asyncio.Task[SearchEngine]
    users: int = 0

    @property
    def engine(self) -> SearchEngine | None:
        """Wait until the engine is open, and return it."""
        done = self.opening.done() and not self.opening.cancelled()
        return self.opening.result() if done and self.opening.exception() is None else None


# Clients are bound to the loop that opened them.
_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]] = (
    weakref.WeakKeyDictionary()
)
_closing: set[asyncio.Future[None]] = set()


async def shared_engine(config: EngineConfig, *, web: bool = False) -> SearchEngine:
    """Return this event loop's engine of a configuration; pass it to :func:`release` exactly once.

    Raises: see :func:`open_engine`.
    """
    engines = _shared.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps([config, web], sort_keys=True)
    shared = engines.get(key)
    if shared is None:
        # An index opens files, a dense one loads a model: not on the loop, and only once.
        opening = asyncio.create_task(asyncio.to_thread(open_engine, config, web=web))
        shared = engines[key] = _Shared(opening)
    shared.users += 1
    try:
        return await asyncio.shield(shared.opening)
    except BaseException:
        await _leave(engines, key)
        raise


async def release(engine: SearchEngine) -> None:
    """Release an engine of :func:`shared_engine`; the last user closes it."""
    engines = _shared.get(asyncio.get_running_loop(), {})
    for key, shared in engines.items():
        if shared.engine is engine:
            await _leave(engines, key)
            return


async def _leave(engines: dict[str, _Shared], key: str) -> None:
    shared = engines[key]
    shared.users -= 1
    if shared.users:
        return
    del engines[key]
    if shared.engine is not None:
        await shared.engine.close()
    else:  # opening was cancelled, or failed
        shared.opening.add_done_callback(_discard)


def _discard(opening: asyncio.Task[SearchEngine]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        closing = asyncio.ensure_future(opening.result().close())
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)

"""Engines by configuration, and one of each shared by all sessions of a process."""

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

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from trajgym.envs.search._build import build_index
from trajgym.envs.search._corpus import read_passages
from trajgym.envs.search._pool import PooledEngine
from trajgym.envs.search._retrieval import RetrievalClient
from trajgym.envs.search._sqlite import SqliteEngine
from trajgym.envs.search._tasks import BUILTIN, builtin_file
from trajgym.envs.search._text import passage_id
from trajgym.envs.search._wire import Patience
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.envs.search._engine import SearchEngine

__all__ = ["EngineConfig", "Ranking", "builtin_index", "open_engine", "release", "shared_engine"]

Ranking: TypeAlias = Literal["sqlite", "bm25", "dense", "hybrid"]
EngineConfig: TypeAlias = "str | dict[str, Any]"


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    record: str | None = None


class _Index(_Config):
    kind: Literal["index"]
    path: str = BUILTIN
    ranking: Ranking = "sqlite"

    def open(self) -> SearchEngine:
        path = builtin_index() if self.path == BUILTIN else Path(self.path)
        if self.ranking == "sqlite":
            return SqliteEngine(path)
        if self.ranking == "bm25":
            from trajgym.envs.search._bm25 import BM25Engine

            return BM25Engine(path)
        from trajgym.envs.search._dense import DenseEngine

        if self.ranking == "dense":
            return DenseEngine(path)
        from trajgym.envs.search._fusion import FusedEngine, words_engine

        return FusedEngine([words_engine(path), DenseEngine(path)])


class _Server(_Config):
    url: str
    seconds: float = Field(default=30.0, gt=0)
    attempts: int = Field(default=5, ge=1)

    @property
    def patience(self) -> Patience:
        return Patience(seconds=self.seconds, attempts=self.attempts)


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


class _Searxng(_Server):
    kind: Literal["searxng"]
    engines: str = ""
    language: str = "en"

    def open(self) -> SearchEngine:
        from trajgym.envs.search._web import SearxngEngine

        return SearxngEngine(
            self.url, engines=self.engines, language=self.language, patience=self.patience
        )


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
    _Index | _Retrieval | _OpenSearch | _Searxng | _Mcp | _Replay, Field(discriminator="kind")
]
_adapter: TypeAdapter[_AnyConfig] = TypeAdapter(_AnyConfig)


def open_engine(config: EngineConfig, *, web: bool = False) -> SearchEngine:
    """Return the engine that a configuration means, batched and cached; close it after use.

    Args:
        config: ``builtin``; an index directory; the URL of a retrieval server; or an object with
            ``kind`` (``index``, ``retrieval``, ``opensearch``, ``searxng``, ``mcp``, ``replay``)
            and its settings. ``record`` names a file that keeps every answer for a replay.
        web: allow engines that ask the live web.

    Raises:
        InvalidInput: unknown kind or settings, no index there, or a live engine without ``web``.
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
        """The engine, once it is open."""
        done = self.opening.done() and not self.opening.cancelled()
        return self.opening.result() if done and self.opening.exception() is None else None


# Clients are bound to the loop that opened them.
_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]] = (
    weakref.WeakKeyDictionary()
)
_closing: set[asyncio.Future[None]] = set()


async def shared_engine(config: EngineConfig, *, web: bool = False) -> SearchEngine:
    """Return this event loop's engine of a configuration; pass it to :func:`release` once.

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
    """Give back what :func:`shared_engine` gave; the last user closes it."""
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
    else:  # it was not awaited to the end, or has failed
        shared.opening.add_done_callback(_discard)


def _discard(opening: asyncio.Task[SearchEngine]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        closing = asyncio.ensure_future(opening.result().close())
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)

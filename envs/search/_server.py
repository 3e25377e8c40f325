"""Our index as a retrieval server: `POST /retrieve`, `POST /access`, `GET /health`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError

from trajgym.envs.search._errors import SearchUnavailable
from trajgym.envs.search._text import contents_of
from trajgym.trajectory._internal import MissingExtra, replace_surrogates

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from trajgym.envs.search._engine import Passage, SearchEngine

__all__ = ["search_app", "serve"]

_MOST_QUERIES = 1024
_MOST_HITS = 1000
_MOST_BYTES = 8 << 20


class _Retrieve(BaseModel):
    queries: list[str] = Field(max_length=_MOST_QUERIES)
    topk: int | None = Field(default=None, ge=1, le=_MOST_HITS)
    return_scores: bool = False


class _Access(BaseModel):
    urls: list[str] = Field(max_length=_MOST_QUERIES)


def search_app(engine: SearchEngine, *, topk: int = 3) -> Starlette:
    """Return the ASGI application of a retrieval server.

    ``POST /retrieve {"queries": [...], "topk": 3, "return_scores": true}`` answers as Search-R1's
    server does, in both forms; ``POST /access {"urls": [...]}`` answers as ASearcher's does, for
    the URLs that are in its documents; ``GET /health`` reports that it is ready. Bad requests are
    answered 422, too large ones 413, an engine that fails 503, each with ``{"error": ...}``.

    Args:
        engine: closed when the application ends.
        topk: passages per query where a request does not say.

    Raises:
        MissingExtra: starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtra("starlette", "search") from error
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        async with engine:
            yield

    async def retrieve(request: Request) -> Response:
        asked = _Retrieve.model_validate_json(await _body(request))
        queries = [replace_surrogates(query) for query in asked.queries]
        found = await engine.search(queries, asked.topk or topk)
        if asked.return_scores:
            rows: list[Any] = [
                [{"document": _document(hit.passage), "score": hit.score} for hit in hits]
                for hits in found
            ]
        else:
            rows = [[_document(hit.passage) for hit in hits] for hits in found]
        return JSONResponse({"result": rows})

    async def access(request: Request) -> Response:
        asked = _Access.model_validate_json(await _body(request))
        found = await engine.get([replace_surrogates(url) for url in asked.urls])
        return JSONResponse({"result": [_document(p) if p else None for p in found]})

    async def health(request: Request) -> Response:
        del request
        return JSONResponse({"status": "ok", "engine": engine.name})

    async def refused(request: Request, error: Exception) -> Response:
        del request
        if isinstance(error, ValidationError):
            said = error.errors(include_url=False, include_context=False, include_input=False)
            return JSONResponse({"error": json.loads(json.dumps(said, default=str))}, 422)
        status = 413 if isinstance(error, _TooLarge) else 503
        return JSONResponse({"error": str(error)}, status)

    return Starlette(
        routes=[
            Route("/retrieve", retrieve, methods=["POST"]),
            Route("/access", access, methods=["POST"]),
            Route("/health", health),
        ],
        exception_handlers=dict.fromkeys((ValidationError, _TooLarge, SearchUnavailable), refused),
        lifespan=lifespan,
    )


async def serve(
    engine: SearchEngine, *, host: str = "127.0.0.1", port: int = 8000, topk: int = 3
) -> None:
    """Serve an engine until SIGINT or SIGTERM, or until cancelled; it is closed then.

    Args:
        engine: what is served.
        host: address to listen on.
        port: port to listen on.
        topk: passages per query where a request does not say.

    Raises:
        MissingExtra: starlette or uvicorn is not installed.
    """
    app = search_app(engine, topk=topk)
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra("uvicorn", "search") from error
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        timeout_keep_alive=60,
        timeout_graceful_shutdown=10,
    )
    await uvicorn.Server(config).serve()


class _TooLarge(Exception):
    """A request body over the limit."""


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise _TooLarge(f"the request is larger than {_MOST_BYTES} bytes")
    return bytes(body)


def _document(passage: Passage) -> dict[str, str]:
    return {
        "id": passage.id,
        "contents": contents_of(passage),
        "url": passage.url or passage.id,
    }

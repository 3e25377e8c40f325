"""Servers for tests: any ASGI application on a free port of this machine."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request


@asynccontextmanager
async def running(app: Any) -> AsyncIterator[str]:
    """Serve an application and yield its URL."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    task = asyncio.create_task(server.serve(sockets=[listening]))
    async with asyncio.timeout(60):
        while not server.started:
            assert not task.done(), task.result()
            await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, 60)
        listening.close()


def answering(path: str, answer: Callable[[Request], Awaitable[Any]], method: str = "POST") -> Any:
    """Return an application with one path; JSON values become JSON answers."""

    async def handle(request: Request) -> Response:
        value = await answer(request)
        return value if isinstance(value, Response) else JSONResponse(value)

    return Starlette(routes=[Route(path, handle, methods=[method])])

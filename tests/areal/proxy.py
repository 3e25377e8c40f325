"""AReaL's own proxy server on loopback, in a thread."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def proxying(engine: Any) -> Iterator[str]:
    """Yield the address of AReaL's proxy over an engine; its module holds one server."""
    import areal.experimental.openai.proxy.proxy_rollout_server as module
    import uvicorn

    module._engine = engine
    module._server_host = "127.0.0.1"
    module._setup_openai_client()
    config = uvicorn.Config(module.app, host="127.0.0.1", port=0, log_level="warning")
    server, ready = uvicorn.Server(config), threading.Event()
    start = server.startup

    async def startup(sockets: Any = None) -> None:
        await start(sockets)
        ready.set()

    server.startup = startup  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert ready.wait(240)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)

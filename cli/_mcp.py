"""`trajgym mcp`: an environment as an MCP server."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from trajgym.cli._terminal import say
from trajgym.envs import EnvSpec
from trajgym.server import McpService
from trajgym.trajectory import Store

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["run_mcp"]


def run_mcp(
    env: str,
    tasks: str,
    config: dict[str, Any],
    *,
    out: Path | None,
    host: str,
    port: int | None,
) -> None:
    """Serve until the client disconnects (stdio) or until Ctrl-C (HTTP).

    Only protocol messages are written to standard output.

    Raises:
        InvalidInput: there is no such environment or task, or a setting is invalid.
        MissingExtra: `mcp` or `uvicorn` is not installed.
    """
    spec = EnvSpec(id=env, config=config)
    spec.make()  # an invalid setting is reported at startup, not at the first call
    asyncio.run(_serve(spec, tasks, out, host, port))


async def _serve(spec: EnvSpec, tasks: str, out: Path | None, host: str, port: int | None) -> None:
    loaded = spec.resolve().load_tasks(tasks)
    async with AsyncExitStack() as stack:
        store = None if out is None else await stack.enter_async_context(Store(out))
        service = McpService(spec, loaded, store=store)
        if port is None:
            await service.serve_stdio()
            return
        await service.serve_http(
            host=host,
            port=port,
            ready=lambda url: say(f"Serving {spec.id} at {url}. Press Ctrl-C to stop.", error=True),
        )

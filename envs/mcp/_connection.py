"""Connections to MCP servers, through the official SDK."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from trajgym.envs import EnvironmentFault
from trajgym.envs.sandbox import SandboxError
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trajgym.envs.mcp._server import McpServer
    from trajgym.envs.sandbox import Sandbox, Stream

__all__ = ["Connection", "McpFault", "connected", "list_tools"]

_CLOSE_SECONDS = 20.0
_STDERR_BYTES = 2000
_BROKEN = frozenset({-32000, -32001, -32700})
"""Codes of a closed connection, a timeout, and a response that is not JSON-RPC."""


class McpFault(EnvironmentFault):
    """An MCP server could not be reached, exited, or violated the protocol.

    Args:
        cause: one sentence that describes the failure.
    """

    def __init__(self, cause: str) -> None:
        super().__init__("mcp", cause)


@asynccontextmanager
async def connected(server: McpServer, sandbox: Sandbox | None = None) -> AsyncIterator[Any]:
    """Connect to a server and yield the SDK's client.

    The context must be exited by the task that entered it.

    Args:
        server: the server.
        sandbox: the sandbox in which its program is started, if it runs in one.

    Raises:
        McpFault: the server can't be started or reached, or does not respond in time.
        MissingExtra: `mcp` is not installed.
        InvalidInput: the server runs in a sandbox, and none is given.
    """
    try:
        import mcp
        from mcp.client.stdio import stdio_client
    except ImportError as error:
        raise MissingExtra("mcp", "mcp") from error
    if server.where == "sandbox" and sandbox is None:
        raise InvalidInput(f"MCP server {server.name} runs in a sandbox, but no sandbox is given")
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        if server.url:
            target: Any = server.url
        elif sandbox is not None and server.where == "sandbox":
            target = _sandboxed(server, sandbox)
        else:
            program, *arguments = server.command
            parameters = mcp.StdioServerParameters(
                command=program, args=arguments, env=dict(server.env), cwd=server.cwd
            )
            target = stdio_client(parameters, errlog=errors)
        client = mcp.Client(target, read_timeout_seconds=server.call_seconds)
        begun = False
        try:
            # The deadline covers only the start; calls of the client have their own.
            async with asyncio.timeout(server.seconds) as limit:
                async with client:
                    limit.reschedule(None)
                    begun = True
                    yield client
        except Exception as error:  # boundary: the SDK and the server
            if begun:
                raise
            output = _written(errors)
            raise McpFault(
                f"MCP server {server.name}: {_cause(error, server.seconds)}"
                f"{': ' if output else ''}{output}"
            ) from error


async def list_tools(server: McpServer, sandbox: Sandbox | None = None) -> list[Any]:
    """Return the tools of a server, as the SDK's ``Tool``, restricted to those in ``only``.

    Raises:
        McpFault: see :func:`connected`.
        InvalidInput: a tool in ``only`` does not exist.
    """
    async with connected(server, sandbox) as client:
        tools: list[Any] = []
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
    if server.only is None:
        return tools
    known = {tool.name: tool for tool in tools}
    if missing := [name for name in server.only if name not in known]:
        raise InvalidInput(
            f"MCP server {server.name}: no tool {missing[0]!r}; there are {sorted(known)}"
        )
    return [known[name] for name in server.only]


class Connection:
    """A connection that is held by a separate task, so that any task can use and close it.

    Args:
        server: the server.
        sandbox: the sandbox in which its program is started, if it runs in one.
    """

    def __init__(self, server: McpServer, sandbox: Sandbox | None = None) -> None:
        self._server = server
        self._sandbox = sandbox
        self._leave = asyncio.Event()
        self._ready: asyncio.Future[Any] | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect.

        Raises:
            McpFault: see :func:`connected`.
        """
        self._ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(self._ready))
        await asyncio.shield(self._ready)

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool and return the SDK's result.

        Raises:
            McpFault: the connection is lost, or the server did not respond in time.
            mcp.MCPError: the server rejected the call.
        """
        import mcp

        if self._ready is None or self._task is None or self._task.done():
            raise McpFault(f"MCP server {self._server.name}: the connection has ended")
        client = self._ready.result()
        try:
            return await client.call_tool(name, arguments)
        except mcp.MCPError as error:
            if error.code not in _BROKEN:
                raise
            raise McpFault(f"MCP server {self._server.name}: {error}") from error
        except Exception as error:
            # boundary: transports raise errors of several libraries
            cause = _cause(error, self._server.call_seconds)
            raise McpFault(f"MCP server {self._server.name}: {cause}") from error

    async def close(self) -> None:
        """Close the connection and stop the program. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        self._leave.set()
        done, _ = await asyncio.wait([task], timeout=_CLOSE_SECONDS)
        if not done:
            task.cancel()
            await asyncio.wait([task], timeout=_CLOSE_SECONDS)
        elif not task.cancelled():
            task.exception()  # marks the exception as retrieved; it no longer matters

    async def _hold(self, ready: asyncio.Future[Any]) -> None:
        try:
            async with connected(self._server, self._sandbox) as client:
                ready.set_result(client)
                await self._leave.wait()
        except BaseException as error:  # passed to the caller that waits for the connection
            if ready.done():
                raise
            ready.set_exception(error if isinstance(error, Exception) else McpFault(repr(error)))


@asynccontextmanager
async def _sandboxed(server: McpServer, sandbox: Sandbox) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the SDK's streams to a program in a sandbox, with one message per line."""
    import anyio

    stream = await sandbox.stream(server.command, env=server.env, cwd=server.cwd)
    to_client, from_server = anyio.create_memory_object_stream[Any](0)
    to_server, from_client = anyio.create_memory_object_stream[Any](0)
    async with stream, anyio.create_task_group() as group:
        group.start_soon(_read, stream, to_client)
        group.start_soon(_write, stream, from_client)
        try:
            yield from_server, to_server
        finally:
            group.cancel_scope.cancel()
            for end in (to_client, from_server, to_server, from_client):
                end.close()


async def _read(stream: Stream, to_client: Any) -> None:
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types.jsonrpc import jsonrpc_message_adapter

    async with to_client:
        while True:
            try:
                line = await stream.read()
            except SandboxError:
                return  # the client then sees a closed stream
            if not line.strip():
                continue
            try:
                read = jsonrpc_message_adapter.validate_json(line, by_name=False)
                message: Any = SessionMessage(read)
            except ValueError as error:
                message = error
            try:
                await to_client.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return


async def _write(stream: Stream, from_client: Any) -> None:
    async with from_client:
        async for found in from_client:
            text = found.message.model_dump_json(by_alias=True, exclude_unset=True)
            stream.send(text.encode())


def _cause(error: BaseException, seconds: float) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    return f"{type(error).__name__}: {error}"


def _written(errors: Any) -> str:
    errors.seek(0)
    return str(errors.read())[-_STDERR_BYTES:].strip()

"""An environment as an MCP server: its tools are the server's, its sessions are recorded."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from trajgym.envs import Reply, Session, tools_of
from trajgym.envs._runs import opened_run
from trajgym.server._auth import is_loopback
from trajgym.server._serve import listen, url_of
from trajgym.trajectory import InvalidInput, blob_hashes, text_of
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from trajgym.envs import EnvSpec
    from trajgym.trajectory import Message, Store, Task

__all__ = ["McpService"]

_START, _END = "start_task", "end_task"
_POLICY = "mcp:client"


class McpService:
    """Serves an environment to an MCP client, one attempt at a time.

    The client calls ``start_task`` and reads the task, calls the environment's tools, and ends with
    ``end_task``. Each call is a turn of a session, recorded before it is answered. Opening the next
    task, or closing the service, cancels an attempt that is not finished.

    Args:
        spec: the environment.
        tasks: what ``start_task`` opens: the one named, or the next in order.
        store: where attempts are recorded; None keeps nothing.

    Raises:
        MissingExtra: `mcp` is not installed.
        InvalidInput: there is no task, or the environment has a tool of a name that is used here.
    """

    def __init__(self, spec: EnvSpec, tasks: Sequence[Task], *, store: Store | None = None) -> None:
        try:
            import mcp.types as types
            from mcp.server.lowlevel import Server
        except ImportError as error:
            raise MissingExtra("mcp", "mcp") from error
        self._types: Any = types
        self._spec = spec
        self._tasks = {task.id: task for task in tasks}
        if not self._tasks:
            raise InvalidInput("an MCP service needs at least one task")
        self._order = list(self._tasks)
        self._tools = tools_of(spec.resolve())
        if taken := {_START, _END} & set(self._tools):
            raise InvalidInput(
                f"environment {spec.id!r} has a tool {min(taken)!r}: the MCP service uses the name"
            )
        self._store = store
        self._opened = 0
        self._session: Session | None = None
        self._lock = asyncio.Lock()
        self.server: Any = Server(
            f"trajgym {spec.id}",
            instructions=f"Call {_START} first, and {_END} when you are done.",
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        """The SDK's server, to be run on any transport."""

    async def serve_stdio(self) -> None:
        """Serve one client on standard input and output, until it leaves."""
        from mcp.server.stdio import stdio_server

        async with self.opened(), stdio_server() as (read, write):
            await self.server.run(read, write, self.server.create_initialization_options())

    def http_app(self, *, host: str = "127.0.0.1") -> Any:
        """Return the ASGI application that serves streamable HTTP at ``/mcp``.

        Run it inside :meth:`opened`.
        """
        return self.server.streamable_http_app(host=host)

    async def serve_http(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        ready: Callable[[str], None] | None = None,
    ) -> None:
        """Serve streamable HTTP at ``/mcp`` until SIGINT or SIGTERM.

        Args:
            host: a loopback address: the protocol has no secret here, so that other machines need
                a proxy that authenticates them.
            port: port to bind to; a free one if 0.
            ready: called with the URL as soon as clients can connect.

        Raises:
            InvalidInput: the address is not loopback, or can't be listened on.
            MissingExtra: uvicorn is not installed.
        """
        if not is_loopback(host):
            raise InvalidInput(
                f"{host} is reachable from other machines, and the MCP service has no secret: bind "
                "to 127.0.0.1, behind a proxy that authenticates clients"
            )
        try:
            import uvicorn
        except ImportError as error:
            raise MissingExtra("uvicorn", "mcp") from error
        with listen(host, port) as bound:
            settings = uvicorn.Config(self.http_app(host=host), log_level="warning")
            async with self.opened():
                if ready is not None:
                    ready(f"{url_of(bound)}/mcp")
                await uvicorn.Server(settings).serve([bound])

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Prepare the environment, and leave nothing open afterwards."""
        tasks = list(self._tasks.values())
        if self._store is not None:
            for task in tasks:
                await self._store.put_task(task)
        async with opened_run(self._spec, tasks):
            try:
                yield
            finally:
                await self._leave()

    # Requests -----------------------------------------------------------------------------

    async def _list(self, context: Any, parameters: Any) -> Any:
        del context, parameters
        own = [(_START, _START_DOC, _START_SCHEMA), (_END, _END_DOC, _END_SCHEMA)]
        tools = [
            (one.name, one.schema["function"]["description"], one.schema["function"]["parameters"])
            for one in self._tools.values()
        ]
        listed = [
            self._types.Tool(name=name, description=about, input_schema=schema)
            for name, about, schema in [own[0], *tools, own[1]]
        ]
        return self._types.ListToolsResult(tools=listed)

    async def _call(self, context: Any, parameters: Any) -> Any:
        del context
        name, arguments = parameters.name, parameters.arguments or {}
        async with self._lock:
            if name == _START:
                return await self._start(arguments)
            session = self._session
            if session is None or session.done:
                return self._refused(f"no task is open: call {_START}")
            if name == _END:
                message: Message = {
                    "role": "assistant",
                    "content": str(arguments.get("answer") or ""),
                }
            else:
                function = {"name": name, "arguments": json.dumps(arguments)}
                calls = [{"id": f"mcp_{len(session.turns)}", "type": "function"}]
                calls[0]["function"] = function  # type: ignore[assignment]
                message = {"role": "assistant", "content": "", "tool_calls": calls}
            done = await session.step(Reply(message=message, policy=_POLICY))
            failed = any(call.status != "ok" for call in session.turns[-1].calls)
            return self._answer(session, done.observation, failed=failed)

    async def _start(self, arguments: dict[str, Any]) -> Any:
        name = arguments.get("task") or self._order[self._opened % len(self._order)]
        task = self._tasks.get(str(name))
        if task is None:
            return self._refused(f"there is no task {name!r}; there are {', '.join(self._order)}")
        await self._leave()
        self._opened += 1
        labels = {"policy": _POLICY}
        self._session = session = Session(self._spec, task, store=self._store, labels=labels)
        await session.__aenter__()
        return self._answer(session, session.messages, failed=session.done)

    async def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.__aexit__(None, None, None)

    def _answer(self, session: Session, messages: Sequence[Message], *, failed: bool) -> Any:
        content = [part for message in messages for part in self._parts(session, message)]
        if session.done:
            # Not the score: an agent that goes on must not learn how it is graded.
            end = "failed" if session.status.kind == "failed" else "ended"
            content.append(self._types.TextContent(type="text", text=f"[The attempt has {end}.]"))
        return self._types.CallToolResult(content=content, is_error=failed)

    def _parts(self, session: Session, message: Message) -> list[Any]:
        images = session.images
        text = (
            text_of(message)
            if isinstance(message.get("content"), str)
            else "".join(str(part.get("text", "")) for part in message.get("content") or ())
        )
        parts: list[Any] = [self._types.TextContent(type="text", text=text)] if text else []
        for name in blob_hashes([message]):
            data = base64.b64encode(images[name]).decode()
            kind = "image/jpeg" if images[name].startswith(b"\xff\xd8\xff") else "image/png"
            parts.append(self._types.ImageContent(type="image", data=data, mime_type=kind))
        return parts

    def _refused(self, why: str) -> Any:
        text = self._types.TextContent(type="text", text=f"Error: {why}")
        return self._types.CallToolResult(content=[text], is_error=True)


_START_DOC = "Open a task and return what it asks. Call it first; it gives an open task up."
_START_SCHEMA = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "id of the task; the next one if left out"}
    },
}
_END_DOC = "Say your answer to the task, in words; this ends most tasks."
_END_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "description": "the answer"}},
}

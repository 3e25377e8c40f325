"""An environment whose tools are those of MCP servers."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Self

from trajgym.envs.mcp._connection import Connection, McpFault, list_tools
from trajgym.envs.mcp._server import McpServer
from trajgym.envs.mcp._tools import adopt
from trajgym.envs.sandbox import SandboxEnv, SandboxSpec, find_provider
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs import Prompt, Tool
    from trajgym.trajectory import Task

__all__ = ["McpEnv"]


class McpEnv(SandboxEnv):
    """The base class of environments with MCP tools in addition to their own tools.

    ::

        class Clock(McpEnv):
            servers = [McpServer(command=["mcp-server-time"])]

            def verify(self):
                ...

    Each attempt has its own connections, and starts its own servers if they are programs. The
    tools of a server are listed once per process, when the environment is first resolved; this
    starts the server and blocks until it responds. An attempt ends ``failed:mcp`` if a server
    exits, violates the protocol or does not respond in time. An error that a tool reports is
    returned to the agent.

    Forks are refused unless a subclass sets ``forkable``, because the state of the servers is
    unknown.

    Args:
        servers: settings of additional servers (:class:`McpServer`), after those of the class.

    Attributes:
        servers: the servers.
        sandbox_spec: the sandbox in which servers with ``where="sandbox"`` run.
        connections: the connections of the open attempt, in the order of the servers.
    """

    forkable: ClassVar[bool] = False
    agent_programs: ClassVar[bool] = False
    servers: Sequence[McpServer] = ()
    sandbox_spec: ClassVar[SandboxSpec] = SandboxSpec()
    connections: Sequence[Connection] = ()

    def __init__(self, *, servers: Sequence[Mapping[str, Any]] = ()) -> None:
        self.servers = self._all_servers(servers)

    @classmethod
    def variant(cls, config: Mapping[str, Any]) -> type[Self]:
        """Return the class with the servers' tools.

        Raises:
            InvalidInput: the settings of a server are invalid, or two tools have the same name.
            McpFault: the tools of a server can't be listed.
        """
        servers = cls._all_servers(config.get("servers", ()))
        if not servers:
            return cls
        key = (cls, json.dumps([server.model_dump() for server in servers], sort_keys=True))
        with _lock:
            if key not in _variants:
                tools = _asked(servers, cls.sandbox_spec, cls.provider_name)
                _variants[key] = type(cls.__name__, (cls,), _namespace(cls, tools))
            found: type[Self] = _variants[key]
        return found

    async def reset(self, task: Task, seed: int | None) -> Prompt:
        """Connect to the servers and return the task's prompt; overrides must call it first.

        Raises:
            McpFault: a server can't be started or reached.
        """
        del seed
        sandbox = None
        if any(server.where == "sandbox" for server in self.servers):
            sandbox = await self.start_sandbox(self.sandbox_spec)
        self.connections = [Connection(server, sandbox) for server in self.servers]
        for connection in self.connections:
            await connection.open()
        return task.prompt or ""

    async def close(self) -> None:
        """Close the connections, and the sandbox if there is one; overrides must call it."""
        connections, self.connections = self.connections, ()
        for connection in connections:
            await connection.close()
        await super().close()

    @classmethod
    def _all_servers(cls, given: Sequence[Mapping[str, Any]]) -> list[McpServer]:
        own = list(cls.servers)
        return [*own, *(McpServer.model_validate(server) for server in given)]


_variants: dict[tuple[type, str], Any] = {}
_lock = threading.Lock()


def _namespace(cls: type[McpEnv], tools: Sequence[Tool]) -> dict[str, Any]:
    return {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "added_tools": (*cls.added_tools, *tools),
    }


def _asked(servers: Sequence[McpServer], spec: SandboxSpec, provider: Any) -> list[Tool]:
    """Return the tools of servers, listed in a thread because the caller may run an event loop."""
    found: list[Tool] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.extend(asyncio.run(_tools(servers, spec, provider)))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            failed.append(error)

    thread = threading.Thread(target=work, name="trajgym-mcp", daemon=True)
    thread.start()
    # Starting a sandbox may take as long as starting its server.
    thread.join(sum(2 * server.seconds for server in servers) + 60.0)
    if thread.is_alive():
        raise McpFault(f"MCP servers {[s.name for s in servers]}: listing the tools timed out")
    if failed:
        raise failed[0]
    return found


async def _tools(servers: Sequence[McpServer], spec: SandboxSpec, provider: Any) -> list[Tool]:
    tools: list[Tool] = []
    for number, server in enumerate(servers):
        if server.where == "sandbox":
            made = await find_provider(provider)
            async with made, await made.start(spec) as sandbox:
                listed = await list_tools(server, sandbox)
        else:
            listed = await list_tools(server)
        tools += [adopt(number, server.prefix, tool) for tool in listed]
    names = [tool.name for tool in tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidInput(
            f"MCP servers: two tools are named {min(twice)!r}; set a prefix for one server"
        )
    return tools

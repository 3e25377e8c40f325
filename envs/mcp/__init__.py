"""Environments with tools of MCP servers, which run on this host, in the sandbox or remotely."""

from trajgym.envs.mcp._connection import McpFault, connected, list_tools
from trajgym.envs.mcp._env import McpEnv
from trajgym.envs.mcp._server import McpServer

__all__ = ["McpEnv", "McpFault", "McpServer", "connected", "list_tools"]

"""Served environments in OpenEnv's protocol.

The contract is that of OpenEnv 0.10: messages ``reset``, ``step``, ``state``, ``mcp`` and ``close``
over a WebSocket, and descriptions over HTTP.
"""

from trajgym.server.environments.openenv._service import OpenEnvService

__all__ = ["OpenEnvService"]

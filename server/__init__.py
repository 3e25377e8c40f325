"""Session server and recording proxy: any agent becomes trainable by one base URL."""

from trajgym.server._app import App, EnvApp, ServerConfig
from trajgym.server._errors import Refused, ServerError, UpstreamError
from trajgym.server._limits import Limits
from trajgym.server._mcp import McpService
from trajgym.server._serve import running, serve
from trajgym.server.control import Control
from trajgym.server.feeding import FedGroup, Feed
from trajgym.server.judging import Judges
from trajgym.server.programs import (
    Agent,
    AgentProgram,
    ProgramCall,
    agent_class,
    get_agent,
    list_agents,
)
from trajgym.server.upstream import EngineKind, Upstream, check_upstream

__all__ = [
    "Agent",
    "AgentProgram",
    "App",
    "Control",
    "EngineKind",
    "EnvApp",
    "FedGroup",
    "Feed",
    "Judges",
    "Limits",
    "McpService",
    "ProgramCall",
    "Refused",
    "ServerConfig",
    "ServerError",
    "Upstream",
    "UpstreamError",
    "agent_class",
    "check_upstream",
    "get_agent",
    "list_agents",
    "running",
    "serve",
]

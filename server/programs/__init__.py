"""Agents that run as programs inside a task's sandbox, as policies."""

from trajgym.server.programs._agent import Agent, ProgramCall
from trajgym.server.programs._known import (
    CommandAgent,
    ScriptAgent,
    agent_class,
    get_agent,
    list_agents,
)
from trajgym.server.programs._policy import AgentProgram
from trajgym.server.programs._presets import (
    AiderAgent,
    ClaudeCodeAgent,
    CodexAgent,
    MiniSweAgent,
    OpenHandsAgent,
    TerminusAgent,
)

__all__ = [
    "Agent",
    "AgentProgram",
    "AiderAgent",
    "ClaudeCodeAgent",
    "CodexAgent",
    "CommandAgent",
    "MiniSweAgent",
    "OpenHandsAgent",
    "ProgramCall",
    "ScriptAgent",
    "TerminusAgent",
    "agent_class",
    "get_agent",
    "list_agents",
]

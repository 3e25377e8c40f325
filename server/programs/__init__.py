"""Agents that run as programs inside a task's sandbox, as policies."""

from trajgym.server.programs._agent import Agent, ProgramCall
from trajgym.server.programs._known import (
    AiderAgent,
    ClaudeCodeAgent,
    CommandAgent,
    MiniSweAgent,
    ScriptAgent,
    agent_class,
    get_agent,
    list_agents,
)
from trajgym.server.programs._policy import AgentProgram

__all__ = [
    "Agent",
    "AgentProgram",
    "AiderAgent",
    "ClaudeCodeAgent",
    "CommandAgent",
    "MiniSweAgent",
    "ProgramCall",
    "ScriptAgent",
    "agent_class",
    "get_agent",
    "list_agents",
]

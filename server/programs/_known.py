"""The agents that can be named, and a command line as an agent."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trajgym.server.programs._agent import Agent, ProgramCall
from trajgym.server.programs._presets import (
    PACKAGES,
    AiderAgent,
    ClaudeCodeAgent,
    CodexAgent,
    MiniSweAgent,
    OpenHandsAgent,
    TerminusAgent,
    directory_of,
)
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import entry_points, load_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CommandAgent",
    "ScriptAgent",
    "agent_class",
    "get_agent",
    "list_agents",
]

_GROUP = "trajgym.agents"


class CommandAgent(Agent):
    """A shell line.

    Args:
        command: the line.
        mount: a directory of this host that it can read at ``/opt/agent``.
    """

    name: ClassVar[str] = "command"

    def __init__(self, *, command: str, mount: str | None = None) -> None:
        if not command.strip():
            raise InvalidInput("the agent's command is empty")
        self._command = command
        self._mount = None if mount is None else directory_of(mount, self.name)

    def command(self, call: ProgramCall) -> str:
        """See :meth:`Agent.command`."""
        del call
        return self._command

    def mounts(self) -> Mapping[str, Path]:
        """See :meth:`Agent.mounts`."""
        return {} if self._mount is None else {PACKAGES: self._mount}

    @property
    def identity(self) -> dict[str, Any]:
        """See :meth:`Agent.identity`."""
        return {"agent": self.name, "command": self._command}


class ScriptAgent(Agent):
    """A script of this host, which is copied into the sandbox and run there.

    Args:
        script: path of the script.
        interpreter: what runs it.
    """

    name: ClassVar[str] = "script"

    def __init__(self, *, script: str, interpreter: str = "/bin/sh") -> None:
        try:
            self._script = Path(script).read_bytes()
        except OSError as error:
            raise InvalidInput(f"agent script {script!r} can't be read: {error}") from error
        self._interpreter = interpreter

    def command(self, call: ProgramCall) -> str:
        """See :meth:`Agent.command`."""
        return f"{self._interpreter} {call.folder}/script"

    def files(self, call: ProgramCall) -> Mapping[str, bytes]:
        """See :meth:`Agent.files`."""
        return {f"{call.folder}/script": self._script}

    @property
    def identity(self) -> dict[str, Any]:
        """See :meth:`Agent.identity`."""
        digest = hashlib.sha256(self._script).hexdigest()
        return {"agent": self.name, "script": digest, "interpreter": self._interpreter}


_KNOWN: dict[str, type[Agent]] = {
    one.name: one
    for one in (
        AiderAgent,
        ClaudeCodeAgent,
        CodexAgent,
        CommandAgent,
        MiniSweAgent,
        OpenHandsAgent,
        ScriptAgent,
        TerminusAgent,
    )
}


def list_agents() -> list[str]:
    """Return the names of all known agents, sorted."""
    return sorted({*_KNOWN, *(entry.name for entry in entry_points(_GROUP))})


def agent_class(name: str) -> type[Agent]:
    """Return the class of a known agent.

    Raises:
        InvalidInput: there is no agent of that name.
    """
    found: object = _KNOWN.get(name)
    for entry in entry_points(_GROUP):
        if entry.name == name:
            found = found or load_entry(entry)
    if not (isinstance(found, type) and issubclass(found, Agent)):
        raise InvalidInput(f"no agent {name!r}; known: {', '.join(list_agents())}")
    return found


def get_agent(name: str, **settings: Any) -> Agent:
    """Return a known agent.

    Args:
        name: see :func:`list_agents`.
        **settings: its keyword arguments.

    Raises:
        InvalidInput: there is no such agent, or a setting is unknown, missing or invalid.
    """
    kind = agent_class(name)
    try:
        return kind(**settings)
    except TypeError as error:
        raise InvalidInput(f"agent {name!r}: {error}; see trajgym agents") from error

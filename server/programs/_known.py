"""The agents that can be named, and a command line as an agent."""

from __future__ import annotations

import hashlib
import shlex
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trajgym.server.programs._agent import Agent, ProgramCall
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "AiderAgent",
    "ClaudeCodeAgent",
    "CommandAgent",
    "MiniSweAgent",
    "ScriptAgent",
    "agent_class",
    "get_agent",
    "list_agents",
]

_GROUP = "trajgym.agents"
_PACKAGES = "/opt/agent"
"""Where an agent's Python packages are mounted."""
_CLAUDE = "claude_agent_sdk/_bundled/claude"


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
        self._mount = None if mount is None else _directory(mount, self.name)

    def command(self, call: ProgramCall) -> str:
        """See :meth:`Agent.command`."""
        del call
        return self._command

    def mounts(self) -> Mapping[str, Path]:
        """See :meth:`Agent.mounts`."""
        return {} if self._mount is None else {_PACKAGES: self._mount}

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


class MiniSweAgent(Agent):
    """mini-swe-agent, with its own tools and prompts; tried with 2.4.

    Args:
        packages: directory made by ``pip install --target DIR mini-swe-agent``, by a Python of the
            version that the sandbox has.
        config: configuration of the agent: a name, or ``key=value`` pairs separated by spaces.
    """

    name: ClassVar[str] = "mini-swe-agent"

    def __init__(self, *, packages: str, config: str = "mini.yaml") -> None:
        self._packages = _directory(packages, self.name)
        if not (self._packages / "minisweagent").is_dir():
            raise InvalidInput(
                f"agent {self.name}: {packages} does not have the package; make the directory with "
                "pip install --target DIR mini-swe-agent"
            )
        self._config = config

    def command(self, call: ProgramCall) -> str:
        """See :meth:`Agent.command`."""
        specs = " ".join(f"-c {shlex.quote(one)}" for one in self._config.split())
        return (
            f"{_module('minisweagent.run.mini')} -m openai/{shlex.quote(call.model)} {specs} "
            f'-t "$(cat {call.prompt})" -y --exit-immediately -l 0 '
            f"-o {call.folder}/trajectory.json"
        )

    def variables(self, call: ProgramCall) -> Mapping[str, str]:
        """See :meth:`Agent.variables`."""
        return {
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_GLOBAL_CONFIG_DIR": call.folder,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }

    def mounts(self) -> Mapping[str, Path]:
        """See :meth:`Agent.mounts`."""
        return {_PACKAGES: self._packages}

    @property
    def identity(self) -> dict[str, Any]:
        """See :meth:`Agent.identity`."""
        version = _version(self._packages, "mini_swe_agent")
        return {"agent": self.name, "version": version, "config": self._config}


class AiderAgent(Agent):
    """aider with one message, without commits; tried with 0.86.

    It edits files by the text of answers and calls no tools.

    Args:
        packages: directory made by ``pip install --target DIR aider-chat``, by a Python of the
            version that the sandbox has.
        edit_format: how answers contain edits; aider's choice for the model if None.
    """

    name: ClassVar[str] = "aider"

    def __init__(self, *, packages: str, edit_format: str | None = None) -> None:
        self._packages = _directory(packages, self.name)
        if not (self._packages / "aider").is_dir():
            raise InvalidInput(
                f"agent {self.name}: {packages} does not have the package; make the directory with "
                "pip install --target DIR aider-chat"
            )
        self._format = edit_format

    def command(self, call: ProgramCall) -> str:
        """See :meth:`Agent.command`."""
        options = (
            "--yes-always --no-auto-commits --no-auto-lint --no-gitignore --no-check-update "
            "--no-show-model-warnings --no-show-release-notes --analytics-disable --no-stream "
            "--no-pretty --no-fancy-input --no-suggest-shell-commands"
        )
        if self._format is not None:
            options += f" --edit-format {shlex.quote(self._format)}"
        return (
            f"{_module('aider')} --model openai/{shlex.quote(call.model)} "
            f"--message-file {call.prompt} {options} "
            f"--chat-history-file {call.folder}/chat.md --input-history-file {call.folder}/input"
        )

    def mounts(self) -> Mapping[str, Path]:
        """See :meth:`Agent.mounts`."""
        return {_PACKAGES: self._packages}

    @property
    def identity(self) -> dict[str, Any]:
        """See :meth:`Agent.identity`."""
        version = _version(self._packages, "aider_chat")
        return {"agent": self.name, "version": version, "edit_format": self._format}


class ClaudeCodeAgent(Agent):
    """Claude Code without its terminal, all permissions given; tried with 2.1.332.

    Args:
        packages: directory made by ``pip install --target DIR claude-agent-sdk``, which contains
            the program.
        bare: leave out its sub-agents, skills and memory.
    """

    name: ClassVar[str] = "claude-code"

    def __init__(self, *, packages: str, bare: bool = False) -> None:
        self._packages = _directory(packages, self.name)
        if not (self._packages / _CLAUDE).is_file():
            raise InvalidInput(
                f"agent {self.name}: {packages} does not have the program; make the directory with "
                "pip install --target DIR claude-agent-sdk"
            )
        self._bare = bare

    def command(self, call: ProgramCall) -> str:
        """See :meth:`Agent.command`."""
        bare = " --bare" if self._bare else ""
        model = shlex.quote(call.model)
        return f"{_PACKAGES}/{_CLAUDE} -p --model {model} --dangerously-skip-permissions{bare}"

    def variables(self, call: ProgramCall) -> Mapping[str, str]:
        """See :meth:`Agent.variables`."""
        return {
            "CLAUDE_CONFIG_DIR": f"{call.folder}/config",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def mounts(self) -> Mapping[str, Path]:
        """See :meth:`Agent.mounts`."""
        return {_PACKAGES: self._packages}

    @property
    def identity(self) -> dict[str, Any]:
        """See :meth:`Agent.identity`."""
        version = _version(self._packages, "claude_agent_sdk")
        return {"agent": self.name, "version": version, "bare": self._bare}


_KNOWN: dict[str, type[Agent]] = {
    one.name: one for one in (AiderAgent, ClaudeCodeAgent, CommandAgent, MiniSweAgent, ScriptAgent)
}


def list_agents() -> list[str]:
    """Return the names of all known agents, sorted."""
    return sorted({*_KNOWN, *(entry.name for entry in metadata.entry_points(group=_GROUP))})


def agent_class(name: str) -> type[Agent]:
    """Return the class of a known agent.

    Raises:
        InvalidInput: there is no agent of that name.
    """
    found: object = _KNOWN.get(name)
    for entry in metadata.entry_points(group=_GROUP, name=name):
        found = found or entry.load()
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


def _directory(path: str, name: str) -> Path:
    found = Path(path)
    if not found.is_dir():
        raise InvalidInput(f"agent {name}: {path} is not a directory")
    return found.resolve()


def _version(packages: Path, name: str) -> str:
    """Return the version of a distribution in a directory of packages."""
    found = sorted(packages.glob(f"{name}-*.dist-info"))
    return found[0].name.removesuffix(".dist-info").split("-")[1] if found else "unknown"


def _module(name: str) -> str:
    """Return the shell words that run a module of the mounted packages.

    ``PYTHONPATH`` would also apply to the commands that the agent runs.
    """
    code = (
        f"import runpy, sys; sys.path.insert(0, {_PACKAGES!r}); "
        f"runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    )
    return f"python3 -c {shlex.quote(code)}"

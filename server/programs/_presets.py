"""Agents of others as programs: how each is started, and with which settings."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trajgym.server.programs._agent import Agent, ProgramCall
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "PACKAGES",
    "AiderAgent",
    "ClaudeCodeAgent",
    "CodexAgent",
    "MiniSweAgent",
    "OpenHandsAgent",
    "TerminusAgent",
    "directory_of",
]

PACKAGES = "/opt/agent"
"""Where an agent's packages are mounted."""
_PYTHON = "/opt/python"
_INSIDE = Path(__file__).with_name("inside")
"""Programs that are copied into the sandbox."""
_CLAUDE = "claude_agent_sdk/_bundled/claude"
_CODEX = "node_modules/@openai/codex-linux-*/vendor/*/bin/codex"


class MiniSweAgent(Agent):
    """mini-swe-agent, with its own tools and prompts; tried with 2.4.

    Args:
        packages: directory made by ``pip install --target DIR mini-swe-agent``, by a Python of the
            version that the sandbox has.
        config: configuration of the agent: a name, or ``key=value`` pairs separated by spaces.
    """

    name: ClassVar[str] = "mini-swe-agent"

    def __init__(self, *, packages: str, config: str = "mini.yaml") -> None:
        self._packages = directory_of(packages, self.name)
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
        return {PACKAGES: self._packages}

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
        self._packages = directory_of(packages, self.name)
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
        return {PACKAGES: self._packages}

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
        self._packages = directory_of(packages, self.name)
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
        return f"{PACKAGES}/{_CLAUDE} -p --model {model} --dangerously-skip-permissions{bare}"

    def variables(self, call: ProgramCall) -> Mapping[str, str]:
        """See :meth:`Agent.variables`."""
        return {
            "CLAUDE_CONFIG_DIR": f"{call.folder}/config",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def mounts(self) -> Mapping[str, Path]:
        """See :meth:`Agent.mounts`."""
        return {PACKAGES: self._packages}

    @property
    def identity(self) -> dict[str, Any]:
        """See :meth:`Agent.identity`."""
        version = _version(self._packages, "claude_agent_sdk")
        return {"agent": self.name, "version": version, "bare": self._bare}


class CodexAgent(Agent):
    """Codex without its terminal, all permissions given; tried with 0.171.

    It uses the Responses API. Plug-ins and apps, which it would download, are switched off.

    Args:
        packages: directory made by ``npm install --prefix DIR @openai/codex``, for the sandbox's
            architecture. The program has no dependencies.
        config: further lines of its ``config.toml``, before the first table.
    """

    name: ClassVar[str] = "codex"

    def __init__(self, *, packages: str, config: str = "") -> None:
        self._packages = directory_of(packages, self.name)
        found = sorted(self._packages.glob(_CODEX))
        if not found:
            raise InvalidInput(
                f"agent {self.name}: {packages} does not have the program; make the directory with "
                "npm install --prefix DIR @openai/codex"
            )
        self._program = f"{PACKAGES}/{found[0].relative_to(self._packages)}"
        self._config = config

    def command(self, call: ProgramCall) -> str:
        """See :meth:`Agent.command`."""
        return (
            f"{self._program} exec --skip-git-repo-check "
            f"--dangerously-bypass-approvals-and-sandbox -m {shlex.quote(call.model)} -"
        )

    def variables(self, call: ProgramCall) -> Mapping[str, str]:
        """See :meth:`Agent.variables`."""
        return {"CODEX_HOME": f"{call.folder}/codex"}

    def files(self, call: ProgramCall) -> Mapping[str, bytes]:
        """See :meth:`Agent.files`."""
        config = f"""\
model_provider = "trajgym"
check_for_update_on_startup = false
{self._config}

[analytics]
enabled = false

[features]
plugins = false
apps = false

[model_providers.trajgym]
name = "trajgym"
base_url = {json.dumps(call.base_url)}
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""
        return {f"{call.folder}/codex/config.toml": config.encode()}

    def mounts(self) -> Mapping[str, Path]:
        """See :meth:`Agent.mounts`."""
        return {PACKAGES: self._packages}

    @property
    def identity(self) -> dict[str, Any]:
        """See :meth:`Agent.identity`."""
        return {
            "agent": self.name,
            "version": _npm_version(self._packages / "node_modules/@openai/codex"),
            "config": self._config,
        }


class _PythonProgram(Agent):
    """A program of ours in front of an agent's library; both run inside the sandbox.

    Args:
        packages: directory with the library.
        python: a Python of this host to mount: the directory above its ``bin``. The sandbox's
            ``python3`` if None, which has to be of the version that the packages were made by.
    """

    program: ClassVar[str]
    """File in the folder ``inside``."""
    package: ClassVar[str]
    """Directory that shows that the library is there."""
    install: ClassVar[str]
    """What pip is asked to install."""
    distribution: ClassVar[str]

    def __init__(self, *, packages: str, python: str | None = None) -> None:
        self._packages = directory_of(packages, self.name)
        if not (self._packages / self.package).is_dir():
            raise InvalidInput(
                f"agent {self.name}: {packages} does not have the package; make the directory with "
                f"pip install --target DIR {self.install}"
            )
        self._python = None if python is None else directory_of(python, self.name)
        if self._python is not None and not (self._python / "bin" / "python3").exists():
            raise InvalidInput(f"agent {self.name}: there is no {python}/bin/python3")

    def command(self, call: ProgramCall) -> str:
        """See :meth:`Agent.command`."""
        python = "python3"
        if self._python is not None:  # its own library, if it has one, is not where it was built
            python = f"LD_LIBRARY_PATH={_PYTHON}/lib {_PYTHON}/bin/python3"
        return f"{python} {call.folder}/{self.program} {PACKAGES}"

    def variables(self, call: ProgramCall) -> Mapping[str, str]:
        """See :meth:`Agent.variables`."""
        return {
            "HOME": call.folder,
            "TMUX_TMPDIR": call.folder,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OTEL_SDK_DISABLED": "true",
        }

    def files(self, call: ProgramCall) -> Mapping[str, bytes]:
        """See :meth:`Agent.files`."""
        return {f"{call.folder}/{self.program}": (_INSIDE / self.program).read_bytes()}

    def mounts(self) -> Mapping[str, Path]:
        """See :meth:`Agent.mounts`."""
        python = {} if self._python is None else {_PYTHON: self._python}
        return {PACKAGES: self._packages, **python}

    @property
    def identity(self) -> dict[str, Any]:
        """See :meth:`Agent.identity`."""
        digest = hashlib.sha256((_INSIDE / self.program).read_bytes()).hexdigest()
        version = _version(self._packages, self.distribution)
        return {"agent": self.name, "version": version, "program": digest}


class OpenHandsAgent(_PythonProgram):
    """OpenHands' agent, tools and condenser without a browser; tried with 1.58 of its SDK.

    It needs Python 3.12, in the sandbox or mounted.

    Args:
        packages: directory made by ``pip install --target DIR openhands-sdk openhands-tools``.
        python: a Python of this host to mount: the directory above its ``bin``. The sandbox's
            ``python3`` if None, which has to be of the version that the packages were made by.
    """

    name: ClassVar[str] = "openhands"
    program: ClassVar[str] = "openhands_main.py"
    package: ClassVar[str] = "openhands/sdk"
    install: ClassVar[str] = "openhands-sdk openhands-tools"
    distribution: ClassVar[str] = "openhands_sdk"


class TerminusAgent(_PythonProgram):
    """Terminus 2 of harbor; tried with 0.26.

    It needs Python 3.12, in the sandbox or mounted, and tmux in the sandbox.

    Args:
        packages: directory made by ``pip install --target DIR harbor``.
        python: a Python of this host to mount: the directory above its ``bin``. The sandbox's
            ``python3`` if None, which has to be of the version that the packages were made by.
    """

    name: ClassVar[str] = "terminus-2"
    program: ClassVar[str] = "terminus_main.py"
    package: ClassVar[str] = "harbor"
    install: ClassVar[str] = "harbor"
    distribution: ClassVar[str] = "harbor"


def directory_of(path: str, name: str) -> Path:
    """Return a directory of this host that an agent's setting names.

    Raises:
        InvalidInput: there is none.
    """
    found = Path(path)
    if not found.is_dir():
        raise InvalidInput(f"agent {name}: {path} is not a directory")
    return found.resolve()


def _version(packages: Path, name: str) -> str:
    """Return the version of a distribution in a directory of packages."""
    found = sorted(packages.glob(f"{name}-*.dist-info"))
    return found[0].name.removesuffix(".dist-info").split("-")[1] if found else "unknown"


def _npm_version(package: Path) -> str:
    """Return the version of an installed package of npm."""
    try:
        return str(json.loads((package / "package.json").read_bytes())["version"])
    except (OSError, ValueError, LookupError, TypeError):
        return "unknown"


def _module(name: str) -> str:
    """Return the shell words that run a module of the mounted packages.

    ``PYTHONPATH`` would also apply to the commands that the agent runs.
    """
    code = (
        f"import runpy, sys; sys.path.insert(0, {PACKAGES!r}); "
        f"runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    )
    return f"python3 -c {shlex.quote(code)}"

"""The interface of agent programs: what is run, with which files and variables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Agent", "ProgramCall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCall:
    """What a program is given for one attempt; paths are those inside the sandbox.

    Args:
        base_url: of the model, for clients of OpenAI's API; ends in ``/v1``.
        anthropic_base_url: the same for clients of Anthropic's API.
        api_key: the session's token.
        model: name of the model to request.
        prompt: path of a file with the task. The program also finds it on its standard input.
        folder: a directory for the program's own files; not a part of the work.
        workdir: where the program is started, and the work is.
    """

    base_url: str
    anthropic_base_url: str
    api_key: str
    model: str
    prompt: str
    folder: str
    workdir: str


class Agent(ABC):
    """An agent program.

    Subclasses take their settings as keyword arguments, and are listed by ``trajgym agents``. They
    are registered under the entry-point group ``trajgym.agents``.

    Attributes:
        name: the name under which it is registered.
        exits: exit statuses that mean that the agent has finished; any other one ends the attempt
            as ``failed:agent``.
    """

    name: ClassVar[str]
    exits: ClassVar[frozenset[int]] = frozenset({0})

    @abstractmethod
    def command(self, call: ProgramCall) -> str:
        """Return the shell line that runs the agent until it has finished."""

    def variables(self, call: ProgramCall) -> Mapping[str, str]:
        """Return environment variables, besides those that every program gets."""
        del call
        return {}

    def files(self, call: ProgramCall) -> Mapping[str, bytes]:
        """Return files to write before the start, by their path inside."""
        del call
        return {}

    def mounts(self) -> Mapping[str, Path]:
        """Return directories of this host that the program can read, by their path inside.

        Raises:
            InvalidInput: there is no such directory.
        """
        return {}

    @property
    def identity(self) -> dict[str, Any]:
        """What the agent's behaviour depends on, as JSON values; recorded with a run."""
        return {"agent": self.name}

"""Specs: environments by name and JSON configuration, which can be sent to other processes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from trajgym.envs._env import Env
from trajgym.envs._errors import UnknownEnv
from trajgym.envs._tasks import problems
from trajgym.envs.faults import contained
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import entry_points, load_entry

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EnvSpec", "register", "registered"]

_GROUP = "trajgym.envs"
_registry: dict[str, type[Env]] = {}


class EnvSpec(BaseModel):
    """The name and configuration of an environment; builds one :class:`Env` per session or fork.

    Attributes:
        id: a registered name, an entry point of the group ``trajgym.envs``,
            ``package.module:Class``, or the URL of a served environment
            (``http://host:port/envs/NAME``).
        config: keyword arguments of the class; JSON values.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    id: str = Field(min_length=1)
    config: dict[str, JsonValue] = Field(default_factory=dict)

    def resolve(self) -> type[Env]:
        """Return the environment class for this configuration.

        Raises:
            UnknownEnv: there is no environment with that id, or it can't be imported.
            InvalidInput: the configuration names a variant that does not exist, or is malformed; or
                the package that registers the environment can't be imported.
        """
        if self.id.startswith(("http://", "https://")):
            from trajgym.envs.remote import remote_class

            return remote_class(self.id)
        found: object = _registry.get(self.id)
        if found is None and ":" in self.id:
            found = _import(self.id)
        if found is None:
            for entry in entry_points(_GROUP):
                if entry.name == self.id:
                    with contained():  # imports the environment's module
                        found = load_entry(entry)
        if not (isinstance(found, type) and issubclass(found, Env)):
            raise UnknownEnv(
                f"no environment {self.id!r}; known: {', '.join(registered()) or 'none'}. "
                "Register one with trajgym.envs.register, or write package.module:Class",
            )
        try:
            with contained():
                return found.variant(self.config)
        except ValidationError as error:
            raise self._refused(problems(error)) from error

    def make(self) -> Env:
        """Build an instance.

        Raises:
            UnknownEnv: see :meth:`resolve`.
            InvalidInput: the class does not accept this configuration, or its rubric has judged
                parts and the configuration gives it no judge.
        """
        cls = self.resolve()
        try:
            with contained():
                env = cls(**self.config)
        except (TypeError, ValidationError) as error:
            what = problems(error) if isinstance(error, ValidationError) else error
            raise InvalidInput(f"environment {self.id!r}: invalid configuration: {what}") from error
        judged = [] if env.rubric is None else [part.name for part in env.rubric.judged]
        if judged and env.judge is None:
            raise InvalidInput(
                f"environment {self.id!r}: a model judges the rubric's parts {judged}, and there "
                "is no judge: set self.judge (a ChatModel) in __init__, usually from the "
                "configuration",
            )
        return env

    def _refused(self, what: str) -> InvalidInput:
        return InvalidInput(f"environment {self.id!r}: invalid configuration: {what}")

    def to_json(self) -> dict[str, Any]:
        """Return ``{"id": ..., "config": {...}}``."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, data: object, where: str = "environment") -> Self:
        """Read the form that :meth:`to_json` returns, such as the ``env`` of a session's record.

        Args:
            data: JSON values.
            where: what they belong to, for the error.

        Raises:
            InvalidInput: a field is missing, malformed or unknown; the message names it.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise InvalidInput(
                f'{where}: {problems(error)}; expected {{"id": ..., "config": {{...}}}}'
            ) from error


def register(env_id: str) -> Callable[[type[Env]], type[Env]]:
    """Class decorator that registers an environment under a name in this process."""

    def add(cls: type[Env]) -> type[Env]:
        _registry[env_id] = cls
        return cls

    return add


def registered() -> list[str]:
    """Return the names of all registered and installed environments, sorted."""
    return sorted({*_registry, *(entry.name for entry in entry_points(_GROUP))})


def _import(path: str) -> object:
    module, _, name = path.partition(":")
    try:
        with contained():
            found: object = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UnknownEnv(f"environment {path!r} can't be imported: {error}") from error
    return found

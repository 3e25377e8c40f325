"""Specs: environments by name and JSON configuration, fit to cross process borders."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from trajgym.envs._env import Env
from trajgym.envs._errors import UnknownEnv
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EnvSpec", "register", "registered"]

_GROUP = "trajgym.envs"
_registry: dict[str, type[Env]] = {}


class EnvSpec(BaseModel):
    """Which environment, with which settings: what builds one :class:`Env` per session or fork.

    Attributes:
        id: a registered name, an entry point of the group ``trajgym.envs``, or
            ``package.module:Class``.
        config: keyword arguments of the class; JSON values.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    id: str = Field(min_length=1)
    config: dict[str, JsonValue] = Field(default_factory=dict)

    def resolve(self) -> type[Env]:
        """Return the environment class.

        Raises:
            UnknownEnv: nothing of that id can be imported.
        """
        from importlib import metadata

        found: object = _registry.get(self.id)
        if found is None and ":" in self.id:
            found = _import(self.id)
        if found is None:
            for entry in metadata.entry_points(group=_GROUP, name=self.id):
                found = entry.load()
        if not (isinstance(found, type) and issubclass(found, Env)):
            raise UnknownEnv(
                f"no environment {self.id!r}; known: {', '.join(registered()) or 'none'}. "
                "Register one with trajgym.envs.register, or write package.module:Class",
            )
        return found

    def make(self) -> Env:
        """Build an instance.

        Raises:
            UnknownEnv: see :meth:`resolve`.
            InvalidInput: the class does not take this configuration.
        """
        cls = self.resolve()
        try:
            return cls(**self.config)
        except TypeError as error:
            raise InvalidInput(f"environment {self.id!r}: bad configuration: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return ``{"id": ..., "config": {...}}``."""
        return self.model_dump(mode="json")


def register(env_id: str) -> Callable[[type[Env]], type[Env]]:
    """Class decorator: make an environment available under a name in this process."""

    def add(cls: type[Env]) -> type[Env]:
        _registry[env_id] = cls
        return cls

    return add


def registered() -> list[str]:
    """Return the names of environments that can be made here, sorted."""
    from importlib import metadata

    return sorted({*_registry, *(entry.name for entry in metadata.entry_points(group=_GROUP))})


def _import(path: str) -> object:
    module, _, name = path.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UnknownEnv(f"environment {path!r} can't be imported: {error}") from error
    return found

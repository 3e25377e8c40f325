"""What a program of the agent needs in the sandbox of an environment, besides the task's own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from pydantic import PrivateAttr

from trajgym.envs import EnvSpec
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trajgym.envs import Env
    from trajgym.envs.sandbox._base import SandboxSpec

__all__ = ["SandboxAdditions", "with_additions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxAdditions:
    """Additions to the sandbox in which the agent works; verification does not have them.

    Args:
        allow: endpoints that can be reached; see :class:`SandboxSpec`.
        mounts: directories of the host that can be read, ``{path inside: directory}``.
    """

    allow: Sequence[str] = ()
    mounts: Mapping[str, Path] = field(default_factory=dict)

    def applied(self, spec: SandboxSpec) -> SandboxSpec:
        """Return a spec with the additions.

        Raises:
            InvalidInput: the sandbox has network access, or a path is in use.
        """
        if spec.network and self.allow:
            raise InvalidInput(
                "the task's sandbox has network access; an agent program can only run in "
                "sandboxes without it, where it reaches nothing but its model"
            )
        if taken := sorted({*self.mounts} & {*spec.mounts, *spec.readonly, *spec.trees}):
            raise InvalidInput(f"the task's sandbox uses {taken} itself; mount the agent elsewhere")
        return dataclasses.replace(
            spec,
            allow=(*spec.allow, *self.allow),
            mounts={**spec.mounts, **self.mounts},
        )


class _SpecWithAdditions(EnvSpec):
    """A spec whose environments start the agent's sandbox with additions."""

    _additions: SandboxAdditions = PrivateAttr(default_factory=SandboxAdditions)

    def make(self) -> Env:
        from trajgym.envs.sandbox._env import SandboxEnv

        env = super().make()
        if not isinstance(env, SandboxEnv):
            raise InvalidInput(
                f"environment {self.id!r} has no sandbox in which a program could run"
            )
        env.additions = self._additions
        return env

    @classmethod
    def of(cls, spec: EnvSpec, additions: SandboxAdditions) -> Self:
        made = cls(id=spec.id, config=spec.config)
        made._additions = additions
        return made


def with_additions(spec: EnvSpec, additions: SandboxAdditions) -> EnvSpec:
    """Return a spec of the same environment whose agent's sandbox has these additions."""
    return _SpecWithAdditions.of(spec, additions)

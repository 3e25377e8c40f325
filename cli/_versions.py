"""Versions of the packages that define a run's environments."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from trajgym.envs import EnvSpec
from trajgym.trajectory import Run, TrajgymError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["env_versions"]


def env_versions(path: Path) -> dict[str, str]:
    """Return the versions of trajgym and of the environments' distributions, as installed.

    Environments that can't be found here, or belong to no distribution, have none.
    """
    with Run(path) as run:
        specs = {one.record.env["id"] for one in run.summaries()}
    modules = set()
    for name in specs:
        try:
            modules.add(EnvSpec(id=name).resolve().__module__.partition(".")[0])
        except (TrajgymError, ImportError):
            continue
    distributions = metadata.packages_distributions()
    found = {"trajgym", *(one for module in modules for one in distributions.get(module, ()))}
    return {name: metadata.version(name) for name in sorted(found)}

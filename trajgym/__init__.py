"""Environments, trajectories and structural rewards for agents that are trained.

The parts are subpackages, such as :mod:`trajgym.envs` and :mod:`trajgym.rollout`; nothing is
imported here, so that each costs only what it needs.
"""

from __future__ import annotations

from typing import Any

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> Any:
    """Look up ``__version__`` in the installed distribution when it is asked for.

    Raises:
        AttributeError: for any other name, and if trajgym is not installed.
    """
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata

    try:
        return metadata.version("trajgym")
    except metadata.PackageNotFoundError:
        raise AttributeError(
            "the version is not known: trajgym runs from a folder and is not installed"
        ) from None

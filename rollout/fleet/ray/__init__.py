"""A fleet's processes as actors on the nodes of a Ray cluster."""

from trajgym.rollout.fleet.ray._launcher import RayLauncher

__all__ = ["RayLauncher"]

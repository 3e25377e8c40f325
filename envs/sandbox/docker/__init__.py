"""Sandboxes in Docker containers."""

from trajgym.envs.sandbox.docker._provider import DockerProvider
from trajgym.envs.sandbox.docker._sandbox import DockerSandbox

__all__ = ["DockerProvider", "DockerSandbox"]

"""Sandboxes made of this host's namespaces, without an engine."""

from trajgym.envs.sandbox.embedded._provider import EmbeddedProvider
from trajgym.envs.sandbox.embedded._sandbox import EmbeddedSandbox

__all__ = ["EmbeddedProvider", "EmbeddedSandbox"]

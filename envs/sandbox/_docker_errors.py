"""What an engine can say instead of an answer; the sandbox turns it into its own errors."""

from __future__ import annotations

from trajgym.envs.sandbox._errors import SandboxError

__all__ = ["ContainerGone", "EngineLost", "EngineRefused"]


class EngineLost(SandboxError):
    """The engine does not answer (any more)."""


class ContainerGone(SandboxError):
    """The engine has no such running container, exec or image."""


class EngineRefused(SandboxError):
    """The engine answered with an error; the message is its own."""

"""Errors of the engine; the sandbox translates them."""

from __future__ import annotations

from trajgym.envs.sandbox._errors import SandboxError

__all__ = ["ContainerGone", "EngineLost", "EngineRefused"]


class EngineLost(SandboxError):
    """The engine does not answer."""


class ContainerGone(SandboxError):
    """The engine has no such running container, exec or image."""


class EngineRefused(SandboxError):
    """The engine answered with an error; the message is its own."""

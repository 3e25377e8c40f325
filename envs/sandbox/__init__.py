"""Sandboxes: where untrusted code runs."""

from trajgym.envs.sandbox._base import (
    CommandResult,
    Limits,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    Snapshot,
)
from trajgym.envs.sandbox._errors import (
    ImageNotFound,
    SandboxDied,
    SandboxError,
    SandboxFileError,
    SandboxStartFailed,
    SandboxUnavailable,
    SnapshotFailed,
)

__all__ = [
    "CommandResult",
    "ImageNotFound",
    "Limits",
    "Sandbox",
    "SandboxDied",
    "SandboxError",
    "SandboxFileError",
    "SandboxProvider",
    "SandboxSpec",
    "SandboxStartFailed",
    "SandboxUnavailable",
    "Snapshot",
    "SnapshotFailed",
]

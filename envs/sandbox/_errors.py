"""Errors of sandboxes.

::

    SandboxError                    the base; a session that meets one ends `failed:sandbox`
    ├── SandboxUnavailable          no engine answers, or the kernel does not allow it
    ├── ImageNotFound               the image does not exist and can't be pulled or built
    ├── SandboxStartFailed          the engine refused or the start timed out
    ├── SandboxDied                 the sandbox is gone: the engine died, the container was removed
    ├── SandboxFileError            a file can't be read or written (missing, too large, a link)
    └── SnapshotFailed              a snapshot could not be taken or restored

A command that fails, times out, or runs out of memory is not an error: it is a
:class:`~trajgym.envs.sandbox.CommandResult` that reports it.
"""

from __future__ import annotations

from trajgym.trajectory import TrajgymError

__all__ = [
    "ImageNotFound",
    "SandboxDied",
    "SandboxError",
    "SandboxFileError",
    "SandboxStartFailed",
    "SandboxUnavailable",
    "SnapshotFailed",
]


class SandboxError(TrajgymError):
    """A sandbox failed, for a reason outside the agent's control."""

    part = "sandbox"


class SandboxUnavailable(SandboxError):
    """No engine answers, or the kernel does not allow this kind of sandbox."""


class ImageNotFound(SandboxError):
    """The image does not exist here and can't be pulled or built."""


class SandboxStartFailed(SandboxError):
    """The sandbox did not start; the message includes the engine's."""


class SandboxDied(SandboxError):
    """The sandbox is gone: removed from outside, or its engine died."""


class SandboxFileError(SandboxError):
    """A file could not be read or written; the sandbox is still usable."""


class SnapshotFailed(SandboxError):
    """A snapshot could not be taken or restored."""

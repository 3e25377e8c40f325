"""Sandboxes: where untrusted code runs."""

from trajgym.envs.sandbox._additions import SandboxAdditions, with_additions
from trajgym.envs.sandbox._base import (
    BASE_IMAGE,
    CommandResult,
    Limits,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    Service,
    Snapshot,
)
from trajgym.envs.sandbox._doctor import Finding, clean_sandboxes, examine_sandboxes
from trajgym.envs.sandbox._env import SandboxEnv
from trajgym.envs.sandbox._errors import (
    ImageNotFound,
    SandboxDied,
    SandboxError,
    SandboxFileError,
    SandboxStartFailed,
    SandboxUnavailable,
    SnapshotFailed,
)
from trajgym.envs.sandbox._find import (
    ProviderName,
    close_shared_providers,
    find_provider,
    hold_shared_providers,
    release_shared_providers,
    shared_provider,
)
from trajgym.envs.sandbox._pool import WarmPool
from trajgym.envs.sandbox._prepare import build_base_image
from trajgym.envs.sandbox._processes import Process
from trajgym.envs.sandbox._shares import HostShares
from trajgym.envs.sandbox._shell import Shell
from trajgym.envs.sandbox._stream import Stream
from trajgym.envs.sandbox._trees import FileEntry
from trajgym.envs.sandbox.conformance._check import PROMISES, CheckReport, check_sandbox
from trajgym.envs.sandbox.docker._provider import DockerProvider
from trajgym.envs.sandbox.docker._sandbox import DockerSandbox
from trajgym.envs.sandbox.embedded._provider import EmbeddedProvider
from trajgym.envs.sandbox.embedded._sandbox import EmbeddedSandbox

__all__ = [
    "BASE_IMAGE",
    "PROMISES",
    "CheckReport",
    "CommandResult",
    "DockerProvider",
    "DockerSandbox",
    "EmbeddedProvider",
    "EmbeddedSandbox",
    "FileEntry",
    "Finding",
    "HostShares",
    "ImageNotFound",
    "Limits",
    "Process",
    "ProviderName",
    "Sandbox",
    "SandboxAdditions",
    "SandboxDied",
    "SandboxEnv",
    "SandboxError",
    "SandboxFileError",
    "SandboxProvider",
    "SandboxSpec",
    "SandboxStartFailed",
    "SandboxUnavailable",
    "Service",
    "Shell",
    "Snapshot",
    "SnapshotFailed",
    "Stream",
    "WarmPool",
    "build_base_image",
    "check_sandbox",
    "clean_sandboxes",
    "close_shared_providers",
    "examine_sandboxes",
    "find_provider",
    "hold_shared_providers",
    "release_shared_providers",
    "shared_provider",
    "with_additions",
]

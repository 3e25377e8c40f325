"""Access to the network namespace of a container, for relays that listen in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trajgym.envs.sandbox.docker._engine import DockerEngine

__all__ = ["network_refusal", "open_network_of"]


def network_refusal(engine: DockerEngine) -> str:
    """Return why no relay can listen in containers of this engine; empty if one can."""
    if os.geteuid() != 0 or not engine.host.startswith("unix://"):
        return "it takes root on the engine's own host; run there as root, or omit it"
    if engine.runtime not in {None, "runc", "crun"}:
        return f"runtime {engine.runtime} has a network of its own; use the engine's default"
    return ""


def open_network_of(pid: int, container: str) -> int:
    """Open the network namespace of a container's first process. Blocks.

    Raises:
        OSError: there is no such process on this host, or it belongs to another container.
    """
    handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Checked after opening: the pid may have been reused before.
        if container in Path(f"/proc/{pid}/cgroup").read_text():
            return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    raise ProcessLookupError(f"process {pid} is not of container {container}")

"""Making the base image of Docker sandboxes."""

from __future__ import annotations

import subprocess
from importlib import resources

from trajgym.envs.sandbox._errors import SandboxUnavailable

__all__ = ["build_base_image"]


def build_base_image(*, force: bool = False) -> None:
    """Build `BASE_IMAGE` on the local Docker engine; does nothing if it exists. Blocks.

    Progress goes to this process's standard error.

    Args:
        force: rebuild it.

    Raises:
        SandboxUnavailable: no engine answers, or the image can't be built; the script printed why.
    """
    folder = resources.files("trajgym.envs.sandbox").joinpath("images", "base")
    with resources.as_file(folder) as path:
        command = ["sh", str(path / "build.sh"), *(["--force"] if force else [])]
        done = subprocess.run(command, check=False)
    if done.returncode:
        raise SandboxUnavailable(
            f"the base image can't be built (status {done.returncode}; the reason stands above)",
        )
